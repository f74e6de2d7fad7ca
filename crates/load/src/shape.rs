//! The shape of a load: a value that describes when requests, or bare connections, start.

use std::time::Duration;

use crate::rate::Rate;

/// The shape of a load.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// This many, as fast as possible: all at once if there is room.
    Burst(u64),
    /// As many in flight as there is room for, for this time.
    Sustain(Duration),
    /// One after the other at an even rate, whether earlier ones are finished or not.
    Ramp {
        /// The rate of starts.
        rate: Rate,
        /// How many start.
        count: u64,
    },
    /// Nothing starts for this time, and open connections stay open.
    Hold(Duration),
    /// A pause: no request of the load starts, and idle connections may be closed.
    Idle {
        /// The duration of the pause.
        time: Duration,
        /// The rate of background requests during the pause, which are counted separately.
        trickle: Option<Rate>,
    },
    /// Repeated rounds.
    Repeat {
        /// The number of rounds.
        times: u32,
        /// The parts of a round, in order.
        round: Vec<Shape>,
        /// The part between two rounds.
        between: Box<Shape>,
    },
}

/// A part of a shape that has no parts itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Step<'a> {
    /// The round that it belongs to, or comes after; from 1.
    pub(crate) round: u32,
    /// The part, which is not a [`Shape::Repeat`].
    pub(crate) shape: &'a Shape,
}

impl Shape {
    /// Returns the parts in order, numbered by the rounds of the outermost repetition.
    pub(crate) fn steps(&self) -> Vec<Step<'_>> {
        let Self::Repeat { times, round, between } = self else { return self.within(1) };
        let mut steps = Vec::new();
        for number in 1..=*times {
            steps.extend(round.iter().flat_map(|shape| shape.within(number)));
            if number < *times {
                steps.extend(between.within(number));
            }
        }
        steps
    }

    fn within(&self, round: u32) -> Vec<Step<'_>> {
        match self {
            Self::Repeat { .. } => {
                self.steps().into_iter().map(|step| Step { round, ..step }).collect()
            }
            shape => vec![Step { round, shape }],
        }
    }

    /// Returns how many requests or connections start in total, if that is known in advance.
    pub fn count(&self) -> Option<u64> {
        self.steps().iter().try_fold(0_u64, |sum, step| {
            let more = match step.shape {
                Self::Burst(count) | Self::Ramp { count, .. } => *count,
                Self::Sustain(_) => return None,
                Self::Hold(_) | Self::Idle { .. } | Self::Repeat { .. } => 0,
            };
            Some(sum.saturating_add(more))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rounds(times: u32, round: Vec<Shape>) -> Shape {
        let between = Box::new(Shape::Idle { time: SECOND, trickle: None });
        Shape::Repeat { times, round, between }
    }

    #[test]
    fn rounds_are_separated_by_pauses_and_the_last_has_none() {
        let shape = rounds(3, vec![Shape::Burst(7)]);
        let steps = shape.steps();
        let kinds: Vec<(u32, bool)> =
            steps.iter().map(|s| (s.round, matches!(s.shape, Shape::Burst(7)))).collect();
        assert_eq!(kinds, [(1, true), (1, false), (2, true), (2, false), (3, true)]);
        assert_eq!(shape.count(), Some(21));
    }

    #[test]
    fn a_round_can_contain_several_steps_and_nested_rounds() {
        let ramp = Shape::Ramp { rate: "100/s".parse().unwrap(), count: 5 };
        let inner = rounds(2, vec![Shape::Burst(1)]);
        let shape = rounds(2, vec![ramp, Shape::Hold(SECOND), inner]);
        assert_eq!(shape.steps().iter().filter(|s| s.round == 2).count(), 5);
        assert_eq!(shape.count(), Some(14));
    }

    #[test]
    fn the_request_count_of_a_sustained_load_is_unknown_in_advance() {
        assert_eq!(rounds(2, vec![Shape::Sustain(SECOND)]).count(), None);
        assert_eq!(Shape::Hold(SECOND).steps().len(), 1);
    }
}
