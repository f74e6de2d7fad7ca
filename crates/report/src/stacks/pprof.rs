//! Stacks as a profile for pprof: the message `perftools.profiles.Profile` of profile.proto, in the
//! encoding of Protocol Buffers, uncompressed, which pprof also reads.

use std::collections::HashMap;

use lowtide_model::leaks::LeakFrame;

use super::{StackSample, name_of};
use crate::text::printable;

/// Numbers of the fields of `Profile`.
mod field {
    pub(super) const SAMPLE_TYPE: u32 = 1;
    pub(super) const SAMPLE: u32 = 2;
    pub(super) const LOCATION: u32 = 4;
    pub(super) const FUNCTION: u32 = 5;
    pub(super) const STRING_TABLE: u32 = 6;
    pub(super) const DEFAULT_SAMPLE_TYPE: u32 = 14;
}

/// What the values of a profile are.
pub(crate) struct Profile {
    /// The name and the unit of each value. The last one is the default.
    pub(crate) values: &'static [(&'static str, &'static str)],
    /// What the labels of samples are.
    pub(crate) label: &'static str,
}

/// Encodes stacks.
pub(crate) fn pprof(profile: &Profile, samples: impl IntoIterator<Item = StackSample>) -> Vec<u8> {
    let mut tables = Tables::default();
    // The first text must be empty.
    tables.text("");
    let mut out = ProtobufMessage::default();
    for (kind, unit) in profile.values {
        let mut value_type = ProtobufMessage::default();
        value_type.number(1, tables.text(kind));
        value_type.number(2, tables.text(unit));
        out.message(field::SAMPLE_TYPE, &value_type);
    }
    for StackSample { frames, values, label: name } in samples {
        let locations = frames.iter().map(|frame| tables.location(frame));
        let mut sample = ProtobufMessage::default();
        sample.numbers(1, locations);
        sample.numbers(2, values.into_iter());
        let mut label = ProtobufMessage::default();
        label.number(1, tables.text(profile.label));
        label.number(2, tables.text(&name));
        sample.message(3, &label);
        out.message(field::SAMPLE, &sample);
    }
    let default = tables.text(profile.values.last().map_or("", |(kind, _)| kind));
    out.0.extend_from_slice(&tables.locations.0);
    out.0.extend_from_slice(&tables.functions.0);
    for text in &tables.texts {
        out.bytes(field::STRING_TABLE, text.as_bytes());
    }
    out.number(field::DEFAULT_SAMPLE_TYPE, default);
    out.0
}

/// The tables that a profile refers to by number.
#[derive(Default)]
struct Tables {
    texts: Vec<String>,
    text_numbers: HashMap<String, u64>,
    functions: ProtobufMessage,
    function_numbers: HashMap<(String, Option<String>), u64>,
    locations: ProtobufMessage,
    location_numbers: HashMap<(u64, Option<u32>), u64>,
}

impl Tables {
    fn text(&mut self, text: &str) -> u64 {
        if let Some(number) = self.text_numbers.get(text) {
            return *number;
        }
        let number = self.texts.len() as u64;
        self.texts.push(text.to_owned());
        self.text_numbers.insert(text.to_owned(), number);
        number
    }

    fn function(&mut self, frame: &LeakFrame) -> u64 {
        let key = (name_of(frame), frame.file.clone());
        if let Some(number) = self.function_numbers.get(&key) {
            return *number;
        }
        let number = self.function_numbers.len() as u64 + 1;
        self.function_numbers.insert(key, number);
        // pprof prints names verbatim.
        let name = self.text(&name_of(frame));
        let file = self.text(&printable(frame.file.as_deref().unwrap_or_default()));
        let mut function = ProtobufMessage::default();
        function.number(1, number);
        function.number(2, name);
        function.number(3, name);
        function.number(4, file);
        self.functions.message(field::FUNCTION, &function);
        number
    }

    fn location(&mut self, frame: &LeakFrame) -> u64 {
        let function = self.function(frame);
        let key = (function, frame.line);
        if let Some(number) = self.location_numbers.get(&key) {
            return *number;
        }
        let number = self.location_numbers.len() as u64 + 1;
        self.location_numbers.insert(key, number);
        let mut line = ProtobufMessage::default();
        line.number(1, function);
        line.number(2, u64::from(frame.line.unwrap_or(0)));
        let mut location = ProtobufMessage::default();
        location.number(1, number);
        location.message(4, &line);
        self.locations.message(field::LOCATION, &location);
        number
    }
}

/// An encoded message of Protocol Buffers.
#[derive(Default)]
struct ProtobufMessage(Vec<u8>);

/// Types of fields on the wire.
const VARINT: u32 = 0;
const LENGTH_DELIMITED: u32 = 2;

impl ProtobufMessage {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u32, kind: u32) {
        self.varint(u64::from(field << 3 | kind));
    }

    fn number(&mut self, field: u32, value: u64) {
        self.key(field, VARINT);
        self.varint(value);
    }

    fn numbers(&mut self, field: u32, values: impl Iterator<Item = u64>) {
        let mut packed = Self::default();
        values.for_each(|value| packed.varint(value));
        self.message(field, &packed);
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, LENGTH_DELIMITED);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u32, message: &Self) {
        self.bytes(field, &message.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protobuf_fields_are_encoded_per_the_specification() {
        let mut message = ProtobufMessage::default();
        message.number(1, 150);
        message.bytes(2, b"testing");
        message.numbers(6, [3, 270, 86_942].into_iter());
        let expected: &[u8] = &[
            0x08, 0x96, 0x01, 0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67, 0x32, 0x06,
            0x03, 0x8e, 0x02, 0x9e, 0xa7, 0x05,
        ];
        assert_eq!(message.0, expected);
    }
}
