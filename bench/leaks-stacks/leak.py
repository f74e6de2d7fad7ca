import sys, time
kept = []
class Session:
    def __init__(self, n):
        self.n = n
        self.buf = [n] * 20
def churn(n):
    x = [str(i) for i in range(n)]
    return len(x)
def remember(n):
    kept.append(Session(n))
def handle(n):
    churn(50)
    if n % 10 == 0:
        remember(n)
    churn(30)
def serve():
    n = 0
    while True:
        handle(n)
        n += 1
        if n % 100 == 0: time.sleep(0.001)
serve()
