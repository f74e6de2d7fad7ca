#!/usr/bin/env python3
"""Puts a report under a pull request of GitHub or a merge request of GitLab, once.

    comment.py REPORT.md NAME

A comment that begins with the marker of NAME is replaced; without one, a comment is added. The variables are those of
the two services: GITHUB_API_URL, GITHUB_REPOSITORY, GITHUB_REF and GITHUB_TOKEN, or CI_API_V4_URL, CI_PROJECT_ID,
CI_MERGE_REQUEST_IID and LOWTIDE_GITLAB_TOKEN. A comment that is not permitted, such as on a pull request from a fork, is
a warning: the report is also in the summary of the job and in the record.
"""

import json
import os
import re
import sys
import urllib.error
import urllib.request

# GitHub accepts 65,536 characters.
MAX_LENGTH = 60_000
TIMEOUT_S = 30
PAGE = 100
MAX_PAGES = 50


class Service:
    """The comments of one pull or merge request."""

    def __init__(self, comments, one, token, update):
        self.comments, self.one, self.token, self.update = comments, one, token, update

    @classmethod
    def of_environment(cls, variables):
        number = re.fullmatch(r"refs/pull/(\d+)/.*", variables.get("GITHUB_REF", ""))
        if number and variables.get("GITHUB_TOKEN"):
            issues = f"{variables['GITHUB_API_URL']}/repos/{variables['GITHUB_REPOSITORY']}/issues"
            token = ("Authorization", f"Bearer {variables['GITHUB_TOKEN']}")
            return cls(f"{issues}/{number[1]}/comments", f"{issues}/comments", token, "PATCH")
        merge_request = variables.get("CI_MERGE_REQUEST_IID")
        if merge_request and variables.get("LOWTIDE_GITLAB_TOKEN"):
            project = f"{variables['CI_API_V4_URL']}/projects/{variables['CI_PROJECT_ID']}"
            notes = f"{project}/merge_requests/{merge_request}/notes"
            return cls(notes, notes, ("PRIVATE-TOKEN", variables["LOWTIDE_GITLAB_TOKEN"]), "PUT")
        return None

    def request(self, method, url, body=None):
        data = None if body is None else json.dumps({"body": body}).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "lowtide", self.token[0]: self.token[1]}
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)

    def find(self, marker):
        for page in range(1, MAX_PAGES + 1):
            comments = self.request("GET", f"{self.comments}?per_page={PAGE}&page={page}")
            for comment in comments:
                if (comment.get("body") or "").startswith(marker):
                    return comment["id"]
            if len(comments) < PAGE:
                return None
        return None

    def put(self, marker, body):
        known = self.find(marker)
        if known is None:
            self.request("POST", self.comments, body)
            return "added"
        self.request(self.update, f"{self.one}/{known}", body)
        return "updated"


def body_of(report, marker):
    """Without the folded tables, if it would be too long."""
    text = f"{marker}\n{report}"
    if len(text) > MAX_LENGTH:
        text = text.split("<details>")[0] + "The tables are in the record of the job.\n"
    return text[:MAX_LENGTH]


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: comment.py REPORT.md NAME")
    marker = f"<!-- lowtide: {re.sub('[^A-Za-z0-9 ._/-]', '-', sys.argv[2])} -->"
    service = Service.of_environment(os.environ)
    if service is None:
        print("lowtide: no comment: this is no pull or merge request, or there is no token for comments")
        return
    with open(sys.argv[1], encoding="utf-8") as report:
        body = body_of(report.read(), marker)
    try:
        print(f"lowtide: the comment was {service.put(marker, body)}")
    except (OSError, ValueError, KeyError) as error:
        reason = error.read(300).decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
        warning = f"lowtide could not comment: {error} {reason}".replace("\n", " ")
        print(f"::warning::{warning}" if "GITHUB_REF" in os.environ else warning)


if __name__ == "__main__":
    main()
