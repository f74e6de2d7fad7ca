#!/usr/bin/env python3
"""Checks action.yml and gitlab.yml: parses them, and runs their shell steps on a repository with two versions of a
program, against a local server in place of the API for comments.

    check.py LOWTIDE

It needs git and PyYAML. Steps with `uses` are not run; their inputs are checked.
"""

import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = "#!/bin/sh\n# {0}\nexec sleep 0.3\n"
TIMEOUT_S = 240


class Comments(http.server.BaseHTTPRequestHandler):
    """The comments of one pull request, as both services answer."""

    stored = []

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]

    def do_GET(self):
        page = int(re.search(r"page=(\d+)$", self.path)[1])
        self.answer(self.stored[(page - 1) * 100 : page * 100])

    def do_POST(self):
        self.stored.append({"id": len(self.stored) + 1, "body": self.body()})
        self.answer(self.stored[-1])

    def do_PATCH(self):
        number = int(self.path.rsplit("/", 1)[1])
        self.stored[number - 1]["body"] = self.body()
        self.answer(self.stored[number - 1])

    do_PUT = do_PATCH

    def log_message(self, *_):
        pass


def run(command, directory, variables=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "CI_", "LOWTIDE_"))}
    environment |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"} | (variables or {})
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.returncode, done.stdout + done.stderr


def git(directory, *words):
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    code, text = run(["git", *who, *words], directory)
    assert code == 0, f"git {words}: {text}"
    return text.strip()


def repository(home):
    """Returns a checkout of the newer version, and the commit of the older one."""
    origin, work = home / "origin", home / "it's a checkout"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    commits = []
    for version in ["older", "newer"]:
        (origin / "program.in").write_text(PROGRAM.format(version))
        git(origin, "add", ".")
        git(origin, "commit", "-q", "-m", version)
        commits.append(git(origin, "rev-parse", "HEAD"))
    git(origin, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(home, "clone", "-q", "--depth=1", f"file://{origin}", str(work))
    return work, commits[0]


def value(expression, context):
    """Evaluates names and `||`, which is all that action.yml has within its variables."""
    for name in expression.split("||"):
        found = context
        for part in name.strip().split("."):
            found = found.get(part, "") if isinstance(found, dict) else ""
        if found != "":
            return str(found)
    return ""


def filled(text, context):
    return re.sub(r"\$\{\{(.*?)\}\}", lambda match: value(match[1], context), str(text))


def check_action(action):
    assert action["runs"]["using"] == "composite"
    steps = action["runs"]["steps"]
    identifiers = {step["id"] for step in steps if "id" in step}
    text = (ROOT / "action.yml").read_text()
    used = set(re.findall(r"inputs\.([a-z-]+)", text))
    assert used == set(action["inputs"]), used ^ set(action["inputs"])
    assert set(re.findall(r"steps\.([a-z]+)\.", text)) <= identifiers
    for name, step in [*action["inputs"].items(), *action["outputs"].items()]:
        assert step["description"], name
    for step in steps:
        assert step["name"] and ("run" in step) != ("uses" in step), step
        if "run" in step:
            assert step["shell"] == "bash", step["name"]
            # A value within the script would be a part of the script, whatever it contains.
            assert "${{" not in step["run"], step["name"]


def run_action(action, lowtide, home, server, fail_on):
    work, base = repository(home)
    temporary = home / "temporary"
    temporary.mkdir()
    given = {"command": "./program", "build": "cp program.in program && chmod +x program", "repeat": "1",
             "lowtide": lowtide, "fail-on": fail_on, "github-token": "secret", "head": str(work)}  # fmt: skip
    inputs = {name: filled(one.get("default", ""), {}) for name, one in action["inputs"].items()} | given
    context = {"inputs": inputs, "steps": {},
               "github": {"action_path": str(ROOT), "run_id": "7", "event_name": "pull_request",
                          "event": {"pull_request": {"base": {"sha": base}}}}}  # fmt: skip
    variables = {"RUNNER_TEMP": str(temporary), "GITHUB_OUTPUT": str(home / "output"),
                 "GITHUB_API_URL": server, "GITHUB_REPOSITORY": "o/r", "GITHUB_REF": "refs/pull/3/merge"}  # fmt: skip
    statuses = {}
    for step in action["runs"]["steps"]:
        if "uses" in step:
            assert pathlib.Path(filled(step["with"]["path"], context)).is_dir()
            continue
        (home / "output").write_text("")
        own = {name: filled(text, context) for name, text in step["env"].items()}
        bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        code, text = run(bash, work, variables | own)
        statuses[step["name"]] = (code, text)
        outputs = dict(line.split("=", 1) for line in (home / "output").read_text().splitlines())
        context["steps"][step.get("id", "")] = {"outputs": outputs}
        assert code == 0 or step["name"] == "Decide", f"{step['name']}: {text}"
    return context, statuses


def run_gitlab(lowtide, home, server):
    text = (ROOT / "packaging/gate/gitlab.yml").read_text()
    job = yaml.safe_load(text)[".lowtide-gate"]
    assert job["artifacts"]["when"] == "always" and job["rules"]
    work, base = repository(home)
    given = {"LOWTIDE": lowtide, "LOWTIDE_GATE": str(ROOT / "packaging/gate"), "LOWTIDE_REPEAT": "1",
             "LOWTIDE_COMMAND": "./program", "LOWTIDE_BUILD": "cp program.in program && chmod +x program",
             "LOWTIDE_GITLAB_TOKEN": "secret"}  # fmt: skip
    own = {"CI_PROJECT_DIR": str(work), "CI_MERGE_REQUEST_DIFF_BASE_SHA": base, "CI_JOB_ID": "9",
           "CI_API_V4_URL": server, "CI_PROJECT_ID": "5", "CI_MERGE_REQUEST_IID": "3"}  # fmt: skip
    script = "\n".join(job["script"])
    code, text = run(["sh", "-e", "-c", script], work, job["variables"] | given | own)
    assert code == 0, text
    assert (work / job["artifacts"]["paths"][0] / "report.md").is_file(), text
    return text


def main():
    lowtide = str(pathlib.Path(sys.argv[1]).resolve())
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Comments)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    check_action(action)
    # The report is on the second page of the comments.
    others = [{"id": place + 1, "body": "another comment"} for place in range(150)]
    for run_of in [
        lambda home: run_action(action, lowtide, home, address, "worse")[1]["Comment"][1],
        lambda home: run_gitlab(lowtide, home, address),
    ]:
        Comments.stored = list(others)
        for word in ["added", "updated"]:
            with tempfile.TemporaryDirectory() as home:
                text = run_of(pathlib.Path(home))
                assert f"the comment was {word}" in text, text
        assert len(Comments.stored) == 151, "there is one comment"
        body = Comments.stored[-1]["body"]
        assert body.startswith("<!-- lowtide: gate -->") and "Not resolved" in body, body
    with tempfile.TemporaryDirectory() as home:
        # What a trial crosses is decided without an interval.
        context, statuses = run_action(action, lowtide, pathlib.Path(home), address, "wall_s>0")
        assert context["steps"]["compare"]["outputs"]["status"] == "99", statuses
        assert context["steps"]["compare"]["outputs"]["verdict"] == "not_resolved", statuses
        assert statuses["Decide"][0] == 99, statuses
    print("action.yml and packaging/gate/gitlab.yml run")


if __name__ == "__main__":
    main()
