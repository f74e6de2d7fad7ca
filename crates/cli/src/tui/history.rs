//! Figures over time, of which there is no end: when there are too many, the older ones are thinned out.

/// So many moments are kept: more than a terminal has columns for.
const MOST: usize = 800;

/// Some figures over time. For each of them, what was highest survives.
#[derive(Debug, Clone, Default)]
pub(crate) struct History<const N: usize> {
    points: Vec<(f64, [u64; N])>,
}

impl<const N: usize> History<N> {
    /// Adds a moment.
    pub(crate) fn add(&mut self, t_s: f64, figures: [u64; N]) {
        if self.points.len() >= MOST {
            self.points = self.points.chunks(2).map(joined).collect();
        }
        self.points.push((t_s, figures));
    }

    /// One of the figures, as the points of a line.
    pub(crate) fn line(&self, which: usize) -> Vec<(f64, f64)> {
        self.points.iter().filter_map(|(t, f)| Some((*t, *f.get(which)? as f64))).collect()
    }

    /// The highest of one of the figures.
    pub(crate) fn highest(&self, which: usize) -> u64 {
        self.points.iter().filter_map(|(_, f)| f.get(which).copied()).max().unwrap_or(0)
    }
}

fn joined<const N: usize>(pair: &[(f64, [u64; N])]) -> (f64, [u64; N]) {
    let (t_s, mut figures) = pair.first().copied().unwrap_or((0.0, [0; N]));
    for (_, others) in pair {
        for (figure, other) in figures.iter_mut().zip(others) {
            *figure = (*figure).max(*other);
        }
    }
    (t_s, figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_history_keeps_its_beginning_its_end_and_what_was_highest() {
        let mut history = History::<2>::default();
        for i in 0..100_000_u64 {
            history.add(i as f64, [if i == 4567 { 9 } else { 1 }, i]);
        }
        let line = history.line(1);
        assert!(line.len() <= MOST, "{}", line.len());
        assert_eq!((line[0].0, line[line.len() - 1]), (0.0, (99_999.0, 99_999.0)));
        assert!(line.windows(2).all(|w| w[0].0 < w[1].0));
        assert_eq!((history.highest(0), history.highest(1)), (9, 99_999));
        assert!(history.line(7).is_empty());
    }
}
