"""A report service: each request builds a table of 50,000 rows and returns it as JSON."""
from flask import Flask, jsonify

app = Flask(__name__)


@app.get("/")
def report():
    rows = [{"id": n, "name": f"customer {n}", "total": n * 1.5, "tags": ["a", "b", str(n)]} for n in range(50_000)]
    return jsonify(rows)
