use super::*;

/// A stage that records its calls, has its own clock, and fails where it should.
#[derive(Default)]
struct Mock {
    said: Vec<String>,
    clock: Duration,
    fails_at: Option<(&'static str, Option<TrialStop>)>,
    /// The time until which its memory rises.
    rises_until: Duration,
}

impl Mock {
    fn failing(at: &'static str, stop: TrialStop) -> Self {
        Self { fails_at: Some((at, Some(stop))), ..Self::default() }
    }

    fn act(&mut self, what: &str) -> Result<(), TrialStop> {
        self.said.push(what.to_owned());
        match &mut self.fails_at {
            Some((at, stop)) if *at == what => stop.take().map_or(Ok(()), Err),
            _ => Ok(()),
        }
    }
}

impl Stage for Mock {
    fn mark(&mut self, moment: Event, round: Option<u32>) {
        let round = round.map(|r| format!(" {r}")).unwrap_or_default();
        self.said.push(format!("{moment:?}{round} at {} s", self.clock.as_secs_f64()));
    }

    fn prepare(&mut self) -> Result<(), TrialStop> {
        self.act("prepare")
    }

    fn start(&mut self) -> Result<(), TrialStop> {
        self.act("start")
    }

    fn await_ready(&mut self, _: &Ready) -> Result<(), TrialStop> {
        self.clock += Duration::from_secs(1);
        self.act("await ready")
    }

    fn load(&mut self, round: u32) -> Result<(), TrialStop> {
        self.clock += Duration::from_secs(5);
        self.act(&format!("load {round}"))
    }

    fn pass(&mut self, time: Duration, _: bool) -> Result<(), TrialStop> {
        self.clock += time;
        self.act("pass")
    }

    fn has_risen(&mut self) -> bool {
        self.clock < self.rises_until
    }

    fn await_end(&mut self, after_load: Option<Duration>) -> Result<(), TrialStop> {
        self.act(&format!("await end {after_load:?}"))
    }

    fn check(&mut self) -> Result<(), TrialStop> {
        self.act("check")
    }

    fn end(&mut self) -> Result<(), TrialStop> {
        self.act("end")
    }

    fn cleanup(&mut self) -> Result<(), TrialStop> {
        self.act("cleanup")
    }
}

fn timeline() -> TrialTimeline {
    TrialTimeline {
        ready: Some("after:1s".parse().unwrap()),
        load: Some("load".to_owned()),
        warmup: 1,
        rounds: 2,
        pause: Duration::from_secs(10),
        settle: Duration::from_secs(30),
        settle_after_phase: false,
        timeout: Duration::from_secs(600),
    }
}

#[test]
fn a_loaded_trial_warms_up_then_loads_and_settles_round_by_round() {
    let mut mock = Mock::default();
    assert_eq!(perform(&mut mock, &timeline()), Outcome::Done);
    mock.said.retain(|s| s != "pass");
    assert_eq!(
        mock.said,
        [
            "prepare",
            "start",
            "await ready",
            "Ready at 1 s",
            "load 0",
            "Baseline at 17.2 s",
            "LoadBegin 1 at 17.2 s",
            "load 1",
            "LoadEnd 1 at 22.2 s",
            "Settled 1 at 32.2 s",
            "LoadBegin 2 at 32.2 s",
            "load 2",
            "LoadEnd 2 at 37.2 s",
            "Settled 2 at 67.2 s",
            "check",
            "end",
            "cleanup"
        ]
    );
}

#[test]
fn the_baseline_wait_for_rising_memory_is_bounded() {
    let baseline = |rises_until| {
        let mut mock = Mock { rises_until: Duration::from_secs(rises_until), ..Mock::default() };
        assert_eq!(perform(&mut mock, &timeline()), Outcome::Done);
        mock.said.into_iter().find(|said| said.starts_with("Baseline")).unwrap()
    };
    assert_eq!(baseline(20), "Baseline at 20.2 s");
    assert_eq!(baseline(1000), "Baseline at 32.2 s");
}

#[test]
fn a_self_loading_subject_runs_to_completion() {
    let mut mock = Mock::default();
    let timeline = TrialTimeline { load: None, ready: None, ..timeline() };
    assert_eq!(perform(&mut mock, &timeline), Outcome::Done);
    assert_eq!(mock.said, ["prepare", "start", "await end None", "check", "end", "cleanup"]);
    let mut mock = Mock::default();
    perform(&mut mock, &TrialTimeline { settle_after_phase: true, ..timeline });
    assert!(mock.said.contains(&"await end Some(30s)".to_owned()));
}

#[test]
fn the_subject_is_ended_and_the_cleanup_runs_after_any_failure() {
    for at in ["prepare", "start", "await ready", "load 0", "load 2", "pass", "check"] {
        let mut mock = Mock::failing(at, TrialStop::Failed("because".to_owned()));
        let outcome = perform(&mut mock, &timeline());
        assert_eq!(outcome, Outcome::Failed { because: "because".to_owned() }, "{at}");
        assert_eq!(mock.said[mock.said.len() - 2..], ["end", "cleanup"], "{at}");
    }
}

#[test]
fn an_interrupted_trial_is_distinguished_from_a_failed_one() {
    let mut mock = Mock::failing("load 1", TrialStop::Interrupted);
    assert_eq!(perform(&mut mock, &timeline()), Outcome::Interrupted);
    assert_eq!(mock.said[mock.said.len() - 2..], ["end", "cleanup"]);
}

#[test]
fn a_failed_cleanup_fails_the_trial() {
    let mut mock = Mock::failing("cleanup", TrialStop::Failed("cleanup".to_owned()));
    let outcome = perform(&mut mock, &timeline());
    assert_eq!(outcome, Outcome::Failed { because: "cleanup".to_owned() });
}
