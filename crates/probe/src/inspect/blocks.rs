//! Repeated walks over the blocks in a process's heaps.

use std::time::Instant;

use lowtide_heap::blocks::BlockVisitor;
use lowtide_model::inspection::Observation;

use crate::detect::{Detected, Detector, WalkedHeaps};
use crate::machine::thread_cpu_s;
use crate::memory::ProcessMemory;
use crate::proc::maps::Mapping;
use crate::process::ProcReader;
use crate::program::ProgramError;
use crate::target::{Target, TargetError};

use super::{describe, heaps};

/// A process whose blocks are read. It holds the memory of one program: after `exec`, it must be
/// opened again.
#[derive(Debug)]
pub struct BlockReader {
    target: Target,
    command: Vec<String>,
    memory: ProcessMemory,
    detector: Detector,
}

/// The result of a walk.
#[derive(Debug, Default)]
pub struct BlockWalk {
    /// The allocators, the ledger of their heaps, and notes about what could not be walked; all of
    /// an inspection, if the walk was part of one.
    pub observation: Observation,
    /// The heaps.
    pub heaps: WalkedHeaps,
    /// The mappings of the process before the walk.
    pub maps: Vec<Mapping>,
    /// The allocators and runtimes that were detected in the process.
    pub detected: Detected,
    /// Time of the walk in seconds.
    pub elapsed_s: f64,
    /// CPU time of the walk in seconds.
    pub cpu_s: f64,
}

impl BlockReader {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// Fails if its memory may not be read, or if it has ended.
    pub fn open(target: &Target) -> Result<Self, TargetError> {
        let target = target.try_clone().map_err(|error| target.failed(error))?;
        let memory = ProcessMemory::open(target.pid).map_err(|error| target.failed(error))?;
        let gone = || TargetError::Gone(target.pid);
        let opened = ProcReader::open(target.pid).map_err(|error| target.failed(error))?;
        let (process, _) = opened.ok_or_else(gone)?;
        let command = process.command_or(&target.stat()?.name);
        Ok(Self { target, command, memory, detector: Detector::default() })
    }

    /// Opens the memory once more. What is known about the files of the process is kept.
    ///
    /// # Errors
    /// Fails if its memory may not be read, or if it has ended.
    pub fn again(&self) -> Result<Self, TargetError> {
        let target = self.target.try_clone().map_err(|error| self.target.failed(error))?;
        let memory = ProcessMemory::open(target.pid).map_err(|error| target.failed(error))?;
        let (command, detector) = (self.command.clone(), self.detector.clone());
        Ok(Self { target, command, memory, detector })
    }

    /// Returns the process.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Returns its command line.
    pub fn command(&self) -> &[String] {
        &self.command
    }

    /// Returns its memory.
    pub fn memory(&self) -> &ProcessMemory {
        &self.memory
    }

    /// Walks the heaps, and passes the blocks in use on. The process is not stopped.
    ///
    /// # Errors
    /// Fails if the process has ended or executes another program, or if its files cannot be read.
    pub fn walk(&mut self, visitor: &mut dyn BlockVisitor) -> Result<BlockWalk, TargetError> {
        let (begin, cpu) = (Instant::now(), thread_cpu_s());
        let target = &self.target;
        let maps = target.maps().map_err(|error| target.failed(error))?;
        let mut observation = Observation { pid: target.pid, ..Observation::default() };
        let detected = match self.detector.detect(target.pid, &maps) {
            Ok(detected) => detected,
            Err(ProgramError::Gone) if !target.is_alive() => {
                return Err(TargetError::Gone(target.pid));
            }
            Err(error) => {
                observation.notes.push(format!("its allocator was not recognised: {error}"));
                Detected::default()
            }
        };
        let walked =
            heaps::walk(&self.memory, &maps, &detected, &mut observation, Some(visitor), None);
        describe(&detected, &mut observation);
        if !self.memory.is_in_use() {
            return Err(left(target));
        }
        Ok(BlockWalk {
            observation,
            heaps: walked,
            maps,
            detected,
            elapsed_s: begin.elapsed().as_secs_f64(),
            cpu_s: thread_cpu_s() - cpu,
        })
    }
}

/// Returns the error for memory that its process has left: its contents belong to no program.
pub(super) fn left(target: &Target) -> TargetError {
    if target.is_alive() {
        TargetError::Replaced(target.pid)
    } else {
        TargetError::Gone(target.pid)
    }
}
