//! What earlier versions wrote can still be read, and means the same: `golden/<level>/` has one of each
//! command and of each object, as bytes and in words.
//!
//! Files only grow. A new command or field fails here until it has its entry: put it into `sample`, a field of the task
//! spec into `full_task_spec`, and run the test once with `WARREN_UPDATE_GOLDEN=1`, which adds what is missing and
//! changes nothing. An entry that does not hold any more shows a change that members and disks of the version which
//! wrote it do not survive; what no version has ever written may be taken out of the file by hand and added again.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use prost::Message;
use warren_core::FEATURE_LEVEL;
use warren_proto::v1;
use warren_proto::v1::snapshot_record::Record;

use super::super::{decode, encode, read_snapshot};
use super::{sample, schema};

/// Bytes, and what they say.
#[derive(Clone, PartialEq, Eq)]
struct GoldenEntry {
    bytes: Vec<u8>,
    text: String,
}

type GoldenEntries = BTreeMap<String, GoldenEntry>;

fn path(level: u32, name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src/codec/golden")).join(level.to_string()).join(name)
}

fn parse(text: &str) -> GoldenEntries {
    let entry = |part: &str| {
        let (name, rest) = part.split_once('\n').unwrap();
        let (hex, words) = rest.split_once('\n').unwrap();
        let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        let bytes = pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
        (name.to_owned(), GoldenEntry { bytes, text: words.trim_end().to_owned() })
    };
    // Words may contain `==` within a line.
    format!("\n{text}").split("\n== ").skip(1).map(entry).collect()
}

fn print(entries: &GoldenEntries) -> String {
    let mut text = String::new();
    for (name, GoldenEntry { bytes, text: words }) in entries {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "== {name}\n{hex}\n{words}\n").unwrap();
    }
    text
}

/// Compares today's samples with the newest file, and the files of all levels with the decoded text.
fn check(name: &str, samples: &GoldenEntries, read: impl Fn(&[u8]) -> String) -> Vec<GoldenEntries> {
    let newest = path(FEATURE_LEVEL, name);
    let mut stored = std::fs::read_to_string(&newest).map(|text| parse(&text)).unwrap_or_default();
    if std::env::var_os("WARREN_UPDATE_GOLDEN").is_some() {
        for (name, sample) in samples {
            stored.entry(name.clone()).or_insert_with(|| sample.clone());
        }
        std::fs::create_dir_all(newest.parent().unwrap()).unwrap();
        std::fs::write(&newest, print(&stored)).unwrap();
    }
    for (name, sample) in samples {
        let found = stored.get(name).map(|entry| print(&[(name.clone(), entry.clone())].into()));
        let wanted = print(&[(name.clone(), sample.clone())].into());
        assert_eq!(
            found.as_ref(),
            Some(&wanted),
            "{}, {name}: see the text of this module",
            newest.display()
        );
    }
    let levels = (0..=FEATURE_LEVEL).map(|level| path(level, name));
    let files: Vec<GoldenEntries> =
        levels.filter_map(|path| std::fs::read_to_string(path).ok()).map(|text| parse(&text)).collect();
    for (name, GoldenEntry { bytes, text: words }) in files.iter().flatten() {
        let found = read(bytes);
        // A later version has more fields, which are between these.
        let mut lines = found.lines();
        let lost = words.lines().find(|line| !lines.any(|found| found == *line));
        assert_eq!(lost, None, "{name} reads now as {found}");
    }
    files
}

#[test]
fn golden_commands_decode_unchanged() {
    let samples = sample::commands().into_iter().map(|(name, command)| {
        (name.to_owned(), GoldenEntry { bytes: encode(&command), text: format!("{command:#?}") })
    });
    let read = |bytes: &[u8]| {
        let command = decode(bytes).unwrap();
        assert_eq!(encode(&command), bytes, "{command:?}");
        format!("{command:#?}")
    };
    check("commands.txt", &samples.collect(), read);
}

fn record(bytes: &[u8]) -> Record {
    v1::SnapshotRecord::decode(bytes).unwrap().record.unwrap()
}

#[test]
fn golden_objects_decode_unchanged() {
    let state = sample::state();
    let records = schema::records(&sample::snapshot(&state)).into_iter().zip(1..);
    let samples = records.map(|(bytes, number)| {
        let record = record(&bytes);
        let kind = match &record {
            Record::Cluster(_) => "cluster",
            Record::Service(_) => "service",
            Record::Node(_) => "node",
            Record::Task(_) => "task",
            Record::Token(_) => "token",
            Record::User(_) => "user",
            Record::SecretObject(_) => "secret-object",
            Record::Volume(_) => "volume",
            Record::Member(_) => "member",
            Record::Network(_) => "network",
        };
        (format!("{number:02} {kind}"), GoldenEntry { bytes, text: format!("{record:#?}") })
    });
    let files = check("snapshot.txt", &samples.collect(), |bytes| format!("{:#?}", record(bytes)));
    let read_all = |file: &GoldenEntries| {
        let whole: Vec<u8> = file.values().flat_map(|entry| schema::delimited(&entry.bytes)).collect();
        // The stored digest is compared with the decoded state.
        read_snapshot(&whole).unwrap()
    };
    for file in &files {
        let read = read_all(file);
        // One of a version without networks gets the default one, and a number for each node.
        assert!(read.networks().any(|network| network.name.as_str() == "default"));
        assert!(read.nodes().all(|node| node.number > 0));
        read.check().unwrap();
    }
    assert_eq!(read_all(files.last().unwrap()), state);
}

#[test]
fn golden_files_cover_every_field() {
    let commands = sample::commands().into_iter().map(|(_, command)| ("Command", encode(&command)));
    let records = schema::records(&sample::snapshot(&sample::state())).into_iter();
    let samples: Vec<_> = commands.chain(records.map(|bytes| ("SnapshotRecord", bytes))).collect();
    assert!(samples.len() > 15);
    assert_eq!(schema::unused_fields(&samples), [""; 0], "put them into `sample`");
    let without = schema::unused_fields(&samples[1..]);
    assert!(without.contains(&"CreateCluster.feature_level".to_owned()), "{without:?}");
}
