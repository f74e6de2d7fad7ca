//! The layout of HotSpot's table of flags (`-XX:…`), which its table of variables describes.

use super::variables::offset;
use crate::memory::Memory;

/// The addresses of the entries that describe a flag, in HotSpot's table of variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlagPlaces {
    /// The field with the pointer to the name.
    pub name: u64,
    /// The field with the pointer to the variable that has the value.
    pub address: u64,
}

/// The offsets of the fields of a flag, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlagLayout {
    /// That of the pointer to the name.
    pub name: u64,
    /// That of the pointer to the variable that has the value.
    pub address: u64,
}

impl FlagPlaces {
    /// Returns the entries of a file that is loaded at an address, from their addresses in the
    /// file; `None` if one of them has no such address.
    pub fn loaded_at(self, load_address: u64) -> Option<Self> {
        let at = |address: u64| load_address.checked_add(address);
        Some(Self { name: at(self.name)?, address: at(self.address)? })
    }

    /// Reads the offsets. Returns `None` if they cannot be read, or if HotSpot has not entered them
    /// yet: two fields have different offsets.
    pub fn offsets(self, memory: &impl Memory) -> Option<FlagLayout> {
        let [name, address] = [offset(memory, self.name)?, offset(memory, self.address)?];
        (name != address).then_some(FlagLayout { name, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Saved;

    #[test]
    fn offsets_are_read_once_hotspot_has_entered_them() {
        let layout = |name: u64, address: u64| {
            let mut bytes = vec![0; 4096];
            bytes[32..40].copy_from_slice(&name.to_le_bytes());
            bytes[80..88].copy_from_slice(&address.to_le_bytes());
            let places = FlagPlaces { name: 0, address: 48 }.loaded_at(0x1000)?;
            places.offsets(&Saved::new(vec![(0x1000, bytes)]))
        };
        assert_eq!(layout(8, 0), Some(FlagLayout { name: 8, address: 0 }));
        assert_eq!([layout(0, 0), layout(u64::MAX, 0)], [None, None]);
        assert_eq!(FlagPlaces { name: u64::MAX, address: 0 }.loaded_at(1), None);
    }
}
