//! Parses protobuf bytes and `.proto` files directly, to check what the generated code hides.

use std::collections::{BTreeMap, BTreeSet};

const FILES: [&str; 3] = [
    include_str!("../../../../../proto/warren/v1/store.proto"),
    include_str!("../../../../../proto/warren/v1/session.proto"),
    include_str!("../../../../../proto/warren/v1/types.proto"),
];

/// A field as a `.proto` file names it.
struct Field {
    name: String,
    /// The name of a message, or of anything else.
    kind: String,
}

/// All messages: their fields by number.
fn messages() -> BTreeMap<String, BTreeMap<usize, Field>> {
    let mut messages: BTreeMap<String, BTreeMap<usize, Field>> = BTreeMap::new();
    let mut message = None;
    for line in FILES.iter().flat_map(|file| file.lines()) {
        match *line.split_whitespace().collect::<Vec<_>>() {
            ["message", name, "{"] => message = Some(name),
            ["enum", ..] => message = None,
            ["map<string,", "string>" | "uint64>", name, "=", number] => {
                add(&mut messages, message, "", name, number)
            }
            ["map<uint64,", value, name, "=", number] => {
                // A map is a list of messages, each of a key and a value.
                let value = value.trim_end_matches('>');
                let entry = format!("{value}Entry");
                add(&mut messages, message, &entry, name, number);
                add(&mut messages, Some(&entry), "uint64", "key", "1");
                add(&mut messages, Some(&entry), value, "value", "2");
            }
            ["optional" | "repeated", kind, name, "=", number] | [kind, name, "=", number] => {
                add(&mut messages, message, kind, name, number);
            }
            _ => {}
        }
    }
    messages
}

fn add(
    messages: &mut BTreeMap<String, BTreeMap<usize, Field>>,
    message: Option<&str>,
    kind: &str,
    name: &str,
    number: &str,
) {
    let (Some(message), Ok(number)) = (message, number.trim_end_matches(';').parse()) else { return };
    let field = Field { name: name.into(), kind: kind.into() };
    messages.entry(message.into()).or_default().insert(number, field);
}

/// Takes a number off the front.
fn varint(bytes: &mut &[u8]) -> usize {
    prost::decode_length_delimiter(bytes).unwrap()
}

/// The fields of a message: number, and content where it has a length.
fn fields(mut bytes: &[u8]) -> Vec<(usize, Option<&[u8]>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => bytes.iter().position(|byte| *byte < 128).unwrap() + 1,
            1 => 8,
            2 => varint(&mut bytes),
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (content, rest) = bytes.split_at(length);
        fields.push((key >> 3, (key & 7 == 2).then_some(content)));
        bytes = rest;
    }
    fields
}

/// The fields that messages of these kinds can have and none of the samples has, as `Message.field`.
pub fn unused_fields(samples: &[(&str, Vec<u8>)]) -> Vec<String> {
    let messages = messages();
    let mut expected = BTreeSet::new();
    let mut open: Vec<&str> = samples.iter().map(|(kind, _)| *kind).collect();
    while let Some(kind) = open.pop() {
        for (number, field) in messages.get(kind).into_iter().flatten() {
            if expected.insert((kind, *number)) {
                open.push(&field.kind);
            }
        }
    }
    let mut open: Vec<(&str, &[u8])> = samples.iter().map(|(kind, bytes)| (*kind, &bytes[..])).collect();
    while let Some((kind, bytes)) = open.pop() {
        for (number, content) in fields(bytes) {
            expected.remove(&(kind, number));
            let inner = &messages[kind][&number].kind;
            open.extend(
                content.filter(|_| messages.contains_key(inner)).map(|content| (&inner[..], content)),
            );
        }
    }
    expected.iter().map(|(kind, number)| format!("{kind}.{}", messages[*kind][number].name)).collect()
}

/// The messages in a row of length-delimited ones.
pub fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let length = varint(&mut bytes);
        let (record, rest) = bytes.split_at(length);
        records.push(record.to_vec());
        bytes = rest;
    }
    records
}

/// The message behind its length.
pub fn delimited(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encode_length_delimiter(message.len(), &mut bytes).unwrap();
    [&bytes, message].concat()
}

/// Changes the message that is the one field of `outer`.
pub fn with_inner_field(outer: &[u8], change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
    let [(number, Some(inner))] = fields(outer)[..] else { panic!("one field with a message was wanted") };
    let mut bytes = Vec::new();
    prost::encode_length_delimiter(number << 3 | 2, &mut bytes).unwrap();
    [bytes, delimited(&change(inner.to_vec()))].concat()
}
