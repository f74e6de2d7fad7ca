//! Takes snapshots of a process, and searches its memory for pointers once. Prints the cost of each
//! step and then the report, as JSON lines: for benchmarks.
//!
//!   snapshots PID LOOKS SECONDS_BETWEEN [MAX_BLOCKS]

use std::error::Error;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_leaks::book::MAX_BLOCKS;
use lowtide_leaks::evidence::Search;
use lowtide_leaks::finder::LeakFinder;
use lowtide_probe::proc::status::Status;
use lowtide_probe::target::Target;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [pid, looks, between, rest @ ..] = &words[..] else {
        return Err("snapshots PID LOOKS SECONDS_BETWEEN [MAX_BLOCKS]".into());
    };
    let max_blocks = rest.first().map_or(Ok(MAX_BLOCKS), |blocks| blocks.parse())?;
    let between = Duration::from_secs_f64(between.parse()?);
    let mut finder = LeakFinder::with_max_blocks(&Target::open(pid.parse()?)?, max_blocks)?;
    let peak = || Status::read(std::process::id()).map(|status| status.peak_rss_bytes);
    let begin = Instant::now();
    for _ in 0..looks.parse::<u32>()? {
        let at = Instant::now();
        let look = finder.look((at - begin).as_secs_f64())?;
        let (cpu_s, wall_s, peak) = (look.cpu_s, at.elapsed().as_secs_f64(), peak()?);
        let whole = look.is_whole;
        println!(
            "{{\"look\": {{\"cpu_s\": {cpu_s}, \"wall_s\": {wall_s}, \"whole\": {whole}, \"peak_rss_bytes\": {peak}}}}}"
        );
        thread::sleep(between.saturating_sub(at.elapsed()));
    }
    let before = finder.report(None, 10);
    let at = Instant::now();
    finder.seek(None, &Search::new(&AtomicBool::new(false)))?;
    let report = finder.report(None, 10);
    println!(
        "{{\"seek\": {{\"cpu_s\": {}, \"wall_s\": {}, \"peak_rss_bytes\": {}}}, \"sampled_share\": {}}}",
        report.cpu_s - before.cpu_s,
        at.elapsed().as_secs_f64(),
        peak()?,
        report.sampled_share
    );
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
