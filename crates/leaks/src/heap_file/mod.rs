//! The structure of a process's memory in a file: what `lowtide inspect --save` writes.
//!
//! The file has what the walks of an inspection found, and no content of memory: the observation
//! (ledger, heaps, arenas), the mappings with their resident bytes, the address, the size and the
//! type of each block in use, the memory in which blocks share pages, and its resident pages.
//! Everything that an inspection concludes from them is concluded again when the file is read. The
//! walkers of all allocators report to the same `BlockVisitor`, so this module knows none of them.
//!
//! The words from which the structure was read are not kept. They lie between the content of blocks
//! and of freed blocks, and no rule that holds for all allocators separates them.
//!
//! - `envelope`: the head of the file with its checksum, and the compressed body.
//!
//! A file can come from anyone: `lowtide_record::bounds` limits its values.

mod envelope;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use lowtide_heap::memory::Memory;
use lowtide_heap::ranges::bytes;
use lowtide_model::heap_file::{CoreOrigin, Origin, SavedMapping};
use lowtide_model::inspection::Observation;
use lowtide_model::pins::{BlockCensus, Pins};
use lowtide_model::saved_observation::SavedObservation;
use lowtide_probe::core_file::CoreFile;
use lowtide_probe::machine;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::target::{Target, TargetError};
use lowtide_record::bounds::{self, OutOfBounds};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::evidence::WalkedSubject;
use crate::pins::{self, HeldMemory, Holdings};

pub use envelope::open as body;
pub use envelope::{MAGIC, MAX_FILE_BYTES};

/// Number of groups whose holders are saved.
const NAMED_GROUPS: usize = 40;

/// The reason why a file is not a valid heap file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HeapFileError {
    /// It does not begin like one.
    #[error("it is not a heap file, which lowtide inspect --save writes")]
    Format,
    /// Another version of the format.
    #[error(
        "its format has version {0}, and this lowtide reads version 1: use the lowtide that wrote it"
    )]
    Version(u32),
    /// It was changed or cut off.
    #[error("it is damaged, or was not copied completely: its checksum is wrong")]
    Damaged,
    /// Its body is larger than any that lowtide writes.
    #[error("it is larger than any heap file that lowtide writes")]
    TooLarge,
    /// Its checksum is right, and its content is impossible.
    #[error("its content is invalid: lowtide did not write it")]
    Invalid,
}

/// A process as it was when it was saved.
#[derive(Debug)]
pub struct HeapFile {
    /// Where and when it was saved.
    pub origin: Origin,
    /// The observation, without the identity of its program.
    pub observation: Observation,
    /// Whether a release would have been refused.
    pub release_is_refused: bool,
    held: HeldMemory,
    holders: SavedHolders,
}

/// What held the blocks, or the reason why it is not known.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum SavedHolders {
    Known(Holdings),
    Unknown(String),
}

/// The part of a body that is JSON.
#[derive(Debug, Serialize, Deserialize)]
struct JsonPart {
    origin: Origin,
    #[serde(flatten)]
    saved: SavedObservation,
    release_is_refused: bool,
    holders: SavedHolders,
    summary: pins::HeldSummary,
}

impl From<OutOfBounds> for HeapFileError {
    fn from(_: OutOfBounds) -> Self {
        Self::Invalid
    }
}

impl HeapFile {
    /// Reads the blocks of a process that was just observed. The process is not stopped.
    ///
    /// # Errors
    /// Fails if its memory may not be read, if it has ended, or executes another program.
    pub fn read(
        target: &Target,
        observation: Observation,
        release_is_refused: bool,
        interrupt: &AtomicBool,
    ) -> Result<Self, TargetError> {
        let (held, subject) = (HeldMemory::read(target, true)?, WalkedSubject::Process(target));
        let holders =
            SavedHolders::Known(pins::name_holders(&held, subject, NAMED_GROUPS, interrupt)?);
        let origin = origin(target)?;
        if target.stat()?.image != observation.image {
            return Err(TargetError::Replaced(target.pid));
        }
        let observation = Observation { image: (0, 0), ..observation };
        Ok(Self { origin, observation, release_is_refused, held, holders })
    }

    /// Reads a core like a file that was saved when the core was written.
    pub fn from_core(core: CoreFile, interrupt: &AtomicBool) -> Self {
        let core = Arc::new(core);
        let (held, observation) = HeldMemory::of_core(&core);
        let subject = WalkedSubject::Core(&core);
        let holders = match pins::name_holders(&held, subject, NAMED_GROUPS, interrupt) {
            Ok(known) => SavedHolders::Known(known),
            Err(error) => SavedHolders::Unknown(error.to_string()),
        };
        // Nothing can be returned from a process that has ended.
        let release_is_refused = true;
        Self { origin: origin_of_core(&core), observation, release_is_refused, held, holders }
    }

    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// Fails if the body is larger than a reader permits.
    pub fn to_bytes(&self) -> Result<Vec<u8>, HeapFileError> {
        let (summary, columns) = pins::encode(&self.held);
        let text = JsonPart {
            origin: self.origin.clone(),
            saved: self.observation.clone().into(),
            release_is_refused: self.release_is_refused,
            holders: self.holders.clone(),
            summary,
        };
        let text = serde_json::to_vec(&text).map_err(|_| HeapFileError::Invalid)?;
        envelope::seal(&text, &columns)
    }

    /// Reads the bytes of a file, which may come from anyone.
    ///
    /// # Errors
    /// Fails if they are not those of a heap file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HeapFileError> {
        let body = envelope::open(bytes)?;
        let (text, columns) = envelope::parts(&body)?;
        let value = serde_json::from_slice(text).map_err(|_| HeapFileError::Invalid)?;
        bounds::check(&value)?;
        let text: JsonPart = serde_json::from_value(value).map_err(|_| HeapFileError::Invalid)?;
        let JsonPart { origin, saved, release_is_refused, holders, summary } = text;
        let observation = saved.into_observation().ok_or(HeapFileError::Invalid)?;
        let held = pins::decode(summary, columns).map_err(|_| HeapFileError::Invalid)?;
        Ok(Self { origin, observation, release_is_refused, held, holders })
    }

    /// Reports the groups of blocks that pin memory, the `top` largest.
    pub fn pins(&self, top: usize) -> Pins {
        match &self.holders {
            SavedHolders::Known(holdings) => self.held.pins_held_by(holdings, top),
            SavedHolders::Unknown(reason) => {
                let mut pins = self.held.pins(top);
                pins.notes.push(reason.clone());
                pins
            }
        }
    }

    /// Counts the blocks in use, in the `top` groups with the most bytes.
    pub fn blocks(&self, top: usize) -> BlockCensus {
        let mut census = self.held.blocks(top);
        match &self.holders {
            SavedHolders::Known(holdings) => holdings.add_to_blocks(&mut census),
            SavedHolders::Unknown(reason) => census.notes.push(reason.clone()),
        }
        census
    }
}

/// Describes this machine and the mappings of a process.
fn origin(target: &Target) -> Result<Origin, TargetError> {
    let memory = ProcessMemory::open(target.pid).map_err(|error| target.failed(error))?;
    let maps = target.maps().map_err(|error| target.failed(error))?;
    let machine = machine::detect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Origin {
        lowtide: env!("CARGO_PKG_VERSION").to_owned(),
        unix_s: now.as_secs_f64(),
        kernel: machine.kernel,
        architecture: machine.architecture,
        page_bytes: memory.page_bytes(),
        mappings: maps.iter().map(|mapping| saved_mapping(mapping, &memory)).collect(),
        core: None,
    })
}

/// Describes a core, and the mappings of its process.
fn origin_of_core(core: &Arc<CoreFile>) -> Origin {
    let memory = ProcessMemory::of_core(Arc::clone(core));
    Origin {
        lowtide: env!("CARGO_PKG_VERSION").to_owned(),
        unix_s: core.unix_s(),
        kernel: None,
        // A core of another architecture is not read.
        architecture: machine::detect().architecture,
        page_bytes: core.page_bytes(),
        mappings: core.maps().iter().map(|mapping| saved_mapping(mapping, &memory)).collect(),
        core: Some(CoreOrigin {
            signal: core.signal(),
            missing_bytes: core.missing_bytes(),
            left_out_bytes: core.left_out_bytes(),
            left_out_shared_bytes: core.left_out_shared_bytes(),
            has_private_memory: core.has_private_memory(),
        }),
    }
}

fn saved_mapping(mapping: &Mapping, memory: &ProcessMemory) -> SavedMapping {
    let resident = memory.resident(mapping.start..mapping.end);
    SavedMapping {
        addresses: format!("{:x}-{:x}", mapping.start, mapping.end),
        permissions: mapping.permissions.to_string(),
        name: mapping.name.clone(),
        bytes: mapping.size(),
        resident_bytes: bytes(&resident),
    }
}

#[cfg(test)]
mod tests;
