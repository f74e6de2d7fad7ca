//! The environment of the processes: the memory of their cgroups and of the machine, read at most
//! once a second.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lowtide_policy::{Headroom, ProcessState};
use lowtide_probe::machine;
use lowtide_probe::pressure::{MemoryPressure, PressureSource};

/// Maximum age of a value.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Maximum age of the setting of huge pages.
const MAX_SETTING_AGE: Duration = Duration::from_secs(10);
/// Maximum number of cgroups whose values are cached.
const MAX_SOURCES: usize = 4096;

/// Reads the environment of processes. Processes of one cgroup share its values.
#[derive(Debug, Default)]
pub(crate) struct SurroundingsReader {
    machine: Option<(Instant, MemoryPressure)>,
    pressures: BTreeMap<PressureSource, (Instant, MemoryPressure)>,
    huge_pages: Option<(Instant, bool)>,
}

impl SurroundingsReader {
    /// Adds the values to a state.
    pub(crate) fn enter(
        &mut self,
        source: &PressureSource,
        now: Instant,
        state: &mut ProcessState,
    ) {
        let pressure = self.pressure(source, now);
        state.stall_percent = pressure.stall_percent;
        state.headroom = pressure
            .limit_bytes
            .zip(pressure.used_bytes)
            .map(|(limit_bytes, used_bytes)| Headroom { limit_bytes, used_bytes });
        state.has_huge_pages = self.has_huge_pages(now);
    }

    fn pressure(&mut self, source: &PressureSource, now: Instant) -> MemoryPressure {
        let is_new = |at: &Instant| now.saturating_duration_since(*at) < MAX_AGE;
        if let Some((at, pressure)) = self.pressures.get(source)
            && is_new(at)
        {
            return *pressure;
        }
        let machine = match self.machine {
            Some((at, pressure)) if is_new(&at) => pressure,
            _ => {
                let pressure = MemoryPressure::of_this_machine();
                self.machine = Some((now, pressure));
                pressure
            }
        };
        if self.pressures.len() >= MAX_SOURCES {
            self.pressures.clear();
        }
        let pressure = source.read(machine);
        self.pressures.insert(source.clone(), (now, pressure));
        pressure
    }

    fn has_huge_pages(&mut self, now: Instant) -> bool {
        match self.huge_pages {
            Some((at, is)) if now.saturating_duration_since(at) < MAX_SETTING_AGE => is,
            _ => {
                let is = machine::has_huge_pages_everywhere();
                self.huge_pages = Some((now, is));
                is
            }
        }
    }
}
