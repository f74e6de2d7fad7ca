"""At each line on stdin, makes 150 TLS contexts with the certificates of the system, and drops them."""
import gc, ssl, sys

print("ready", flush=True)
for line in sys.stdin:
    contexts = [ssl.create_default_context() for _ in range(150)]
    contexts.clear()
    gc.collect()
    print("done", flush=True)
