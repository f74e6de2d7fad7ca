//! `lowtide load`, with real servers, and without a server.

mod bad_input;
mod rounds;
mod servers;
mod thresholds;

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use lowtide_testing::Running;
use serde_json::Value;

use crate::support::lowtide;

/// The demo's server: HTTP/2, each request waits for the time in `?expire=MS`.
pub(crate) struct Server {
    child: Running,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::spawn(lowtide().args(["demo-server", "127.0.0.1:0"]))
    }

    /// Starts it by a command.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.strip_prefix("listening on ")?.to_owned()))
            .unwrap();
        Self { child: child.into(), address }
    }

    pub(crate) fn url(&self, query: &str) -> String {
        format!("http://{}/{query}", self.address)
    }
}

fn load(arguments: &[&str]) -> Output {
    lowtide().args(["--json", "load"]).args(arguments).output().unwrap()
}

/// Returns the object that was printed, and checks that its rounds add up.
pub(crate) fn report(output: &Output) -> Value {
    let found = crate::inspect::object(output);
    for round in found["rounds"].as_array().unwrap() {
        let number = |key: &str| round[key].as_u64().unwrap();
        assert_eq!(number("requests"), number("succeeded") + number("failed"), "{round}");
    }
    crate::schemas::hold_load(&found);
    found
}
