//! Loses two nodes that point to each other, and keeps a handler, in each step. Answers each line
//! on stdin with the steps and the seconds since it started.

use std::cell::RefCell;
use std::io::BufRead;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

trait Handler {
    fn run(&self) -> u64;
}

struct Subscription {
    number: u64,
    fields: [u64; 6],
}

impl Handler for Subscription {
    fn run(&self) -> u64 {
        self.number + self.fields[0]
    }
}

struct Node {
    peer: RefCell<Option<Rc<Node>>>,
    fields: [u64; 5],
}

static STEPS: AtomicU64 = AtomicU64::new(0);

fn work() {
    let mut handlers: Vec<Box<dyn Handler>> = Vec::new();
    for number in 0.. {
        let one = Rc::new(Node { peer: RefCell::new(None), fields: [number; 5] });
        let two = Rc::new(Node { peer: RefCell::new(Some(one.clone())), fields: [number; 5] });
        *one.peer.borrow_mut() = Some(two.clone());
        handlers.push(Box::new(Subscription { number, fields: [number; 6] }));
        let sum = handlers.last().map_or(0, |handler| handler.run());
        STEPS.fetch_add(1 + std::hint::black_box(sum + one.fields[0] + two.fields[0]) % 1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn main() {
    let start = Instant::now();
    std::thread::spawn(work);
    for _ in std::io::stdin().lock().lines() {
        let (steps, seconds) = (STEPS.load(Ordering::Relaxed), start.elapsed().as_secs_f64());
        println!("{{\"steps\": {steps}, \"seconds\": {seconds}}}");
    }
}
