//! HPACK's dynamic table (RFC 7541, section 2.3.2), without the strings. It keeps only the meaning
//! and the lengths of fields. A full table takes 3 KiB, an unused one nothing.

use std::collections::VecDeque;

use super::TABLE_SIZE;

/// The names of fields, as far as they are relevant here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldName {
    /// `:status`
    Status,
    /// `content-length`
    ContentLength,
    /// Another one that starts with a colon. No response has such a field.
    OtherPseudo,
    /// One that is ignored.
    Other,
}

impl FieldName {
    /// Parses a name, of which the first bytes may suffice.
    pub(super) fn parse(name: &[u8]) -> Self {
        match name {
            b":status" => Self::Status,
            b"content-length" => Self::ContentLength,
            [b':', ..] => Self::OtherPseudo,
            _ => Self::Other,
        }
    }
}

/// A field: its meaning, and the lengths that its size in the table depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeaderField {
    pub(super) name: FieldName,
    pub(super) name_length: u32,
    pub(super) value_length: u32,
    /// The value, if it is a number and the name is relevant.
    pub(super) number: Option<u64>,
}

impl HeaderField {
    /// Returns the size that the field counts for (section 4.1).
    fn size(&self) -> usize {
        self.name_length as usize + self.value_length as usize + 32
    }
}

/// The dynamic table.
#[derive(Debug)]
pub(super) struct DynamicTable {
    /// The newest first.
    fields: VecDeque<HeaderField>,
    size: usize,
    max_size: usize,
}

impl Default for DynamicTable {
    fn default() -> Self {
        Self { fields: VecDeque::new(), size: 0, max_size: TABLE_SIZE }
    }
}

impl DynamicTable {
    /// Returns the field with this index, counted from 0 in this table.
    pub(super) fn get(&self, index: usize) -> Option<HeaderField> {
        self.fields.get(index).copied()
    }

    /// Adds a field, and evicts the oldest until it fits. A field larger than the table empties it.
    pub(super) fn insert(&mut self, field: HeaderField) {
        self.shrink_to(self.max_size.saturating_sub(field.size()));
        if field.size() <= self.max_size {
            self.size += field.size();
            self.fields.push_front(field);
        }
    }

    /// Sets the maximum size.
    pub(super) fn set_max_size(&mut self, most: usize) {
        self.max_size = most;
        self.shrink_to(most);
    }

    fn shrink_to(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.fields.pop_back()
        {
            self.size -= oldest.size();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(length: u32) -> HeaderField {
        HeaderField { name: FieldName::Other, name_length: length, value_length: 0, number: None }
    }

    #[test]
    fn inserting_a_field_evicts_the_oldest_fields() {
        let mut table = DynamicTable::default();
        table.set_max_size(100);
        table.insert(field(1));
        table.insert(field(2));
        assert_eq!(table.get(0), Some(field(2)));
        assert_eq!(table.get(1), Some(field(1)));
        table.insert(field(3));
        assert_eq!((table.get(1), table.get(2)), (Some(field(2)), None));
        table.insert(field(69));
        assert_eq!(table.get(0), None, "a field that cannot fit empties the table");
        table.insert(field(68));
        table.set_max_size(0);
        assert_eq!((table.get(0), table.size), (None, 0));
    }

    #[test]
    fn a_field_takes_at_most_32_bytes() {
        assert!(size_of::<HeaderField>() <= 32);
    }
}
