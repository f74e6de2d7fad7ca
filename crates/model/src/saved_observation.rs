//! An observation as files keep it: with the parts that `lowtide.inspect/1` does not show and that
//! a diagnosis needs.

use serde::{Deserialize, Serialize};

use crate::inspection::{CLibrary, HeapPrediction, Observation};

/// The names of C libraries.
const C_LIBRARIES: [&str; 2] = ["glibc", "musl"];

/// An observation that can be written to a file and diagnosed again when it is read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SavedObservation {
    observation: Observation,
    heap: Option<HeapPrediction>,
    /// The name and the version of the C library.
    c_library: Option<(String, Option<String>)>,
    /// The prediction and the variable of each heap of the observation.
    heaps: Vec<(HeapPrediction, Option<String>)>,
}

impl From<Observation> for SavedObservation {
    fn from(observation: Observation) -> Self {
        let c_library = observation.c_library.as_ref();
        Self {
            heap: observation.heap,
            c_library: c_library.map(|c| (c.name.to_owned(), c.version.clone())),
            heaps: observation.heaps.iter().map(|h| (h.prediction, h.variable.clone())).collect(),
            observation,
        }
    }
}

impl SavedObservation {
    /// Returns the observation; `None` if its parts contradict each other, as in a file that
    /// lowtide has not written.
    pub fn into_observation(self) -> Option<Observation> {
        let Self { mut observation, heap, c_library, heaps } = self;
        let is_consistent = observation.rss_bytes == observation.ledger.total()
            && observation.heaps.len() == heaps.len();
        if !is_consistent {
            return None;
        }
        observation.heap = heap;
        observation.c_library = c_library.and_then(|(name, version)| {
            let name = C_LIBRARIES.into_iter().find(|known| *known == name)?;
            Some(CLibrary { name, version })
        });
        for (heap, (prediction, variable)) in observation.heaps.iter_mut().zip(heaps) {
            (heap.prediction, heap.variable) = (prediction, variable);
        }
        Some(observation)
    }
}
