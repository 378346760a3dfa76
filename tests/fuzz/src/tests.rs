use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use super::*;

/// The size limit: corpora are read by every test run and are part of every checkout.
const MAX_FILES: usize = 100;
const MAX_BYTES: usize = 200 << 10;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths.map(|path| (path.clone(), fs::read(&path).unwrap())).collect();
    files.sort();
    files
}

#[test]
fn script_runs_every_target() {
    let listed = format!("targets=({})", TARGETS.map(|(name, _)| name).join(" "));
    assert!(include_str!("../run.sh").contains(&listed), "run.sh lacks {listed}");
}

#[test]
fn every_corpus_input_passes() {
    let mut found = Vec::new();
    for (name, target) in TARGETS {
        for (path, bytes) in corpus(name) {
            if catch_unwind(|| target(&bytes)).is_err() {
                found.push(path);
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}: their messages are above");
}

#[test]
fn corpora_are_there_and_small() {
    let mut bytes = 0;
    for (name, _) in TARGETS {
        let files = corpus(name);
        assert!((5..=MAX_FILES).contains(&files.len()), "{name} has {} files", files.len());
        let different: BTreeSet<_> = files.iter().map(|(_, content)| content).collect();
        assert_eq!(different.len(), files.len(), "the corpus of {name} has a duplicate");
        bytes += files.iter().map(|(_, content)| content.len()).sum::<usize>();
    }
    assert!(bytes <= MAX_BYTES, "the corpora have {bytes} bytes");
}

#[test]
fn every_target_has_a_corpus_and_every_corpus_a_target() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let names = fs::read_dir(directory).unwrap();
    let found: BTreeSet<String> =
        names.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned()).collect();
    assert_eq!(found, TARGETS.map(|(name, _)| name.to_owned()).into());
    assert!(target("apply").is_some() && target("").is_none());
}

#[test]
fn corpus_reaches_every_reaction_to_a_query() {
    let reached: BTreeSet<_> = corpus("dns").iter().filter_map(|(_, bytes)| dns::reaction(bytes)).collect();
    assert_eq!(reached.into_iter().collect::<Vec<_>>(), ["Answered", "Forward", "Malformed", "Refused"]);
}

#[test]
fn corpus_reaches_every_feature_of_a_network() {
    let reached: BTreeSet<_> =
        corpus("network").iter().flat_map(|(_, bytes)| network::features(bytes)).collect();
    assert_eq!(reached.len(), 8, "{reached:?}");
}

#[test]
fn corpora_reach_what_parsers_accept() {
    type Accepted = fn(&[u8]) -> Option<&'static str>;
    let parsers: [(&str, Accepted, &[&str]); 5] = [
        ("registry", registry::accepted, &["challenge", "error", "token"]),
        ("signature", signature::accepted, &["key", "manifest", "payload", "signed payload"]),
        ("archive", archive::accepted, &["layout", "saved images"]),
        ("policy", policy::accepted, &["rules", "signatures", "weaker rules"]),
        ("request", request::accepted, &["forged", "key of another kind", "request"]),
    ];
    for (name, accepted, expected) in parsers {
        let reached: BTreeSet<_> = corpus(name).iter().map(|(_, bytes)| accepted(bytes)).collect();
        assert!(reached.contains(&None), "{name} refuses nothing");
        assert_eq!(reached.into_iter().flatten().collect::<Vec<_>>(), expected, "{name}");
    }
}

/// A target that rejects every input finds nothing.
#[test]
fn corpus_reaches_every_command() {
    let reads = |read: fn(&[u8]) -> bool, name| corpus(name).iter().filter(|(_, bytes)| read(bytes)).count();
    assert!(reads(|bytes| warren_store::codec::decode(bytes).is_ok(), "codec") >= 14);
    assert!(reads(|bytes| warren_store::codec::read_snapshot(bytes).is_ok(), "snapshot") >= 5);
    let applied: BTreeSet<_> = corpus("apply").iter().flat_map(|(_, bytes)| apply::reached(bytes)).collect();
    let expected = [
        "AdvanceRollout",
        "AssignTasks",
        "CreateCluster",
        "CreateNetwork",
        "CreateSecretObject",
        "CreateService",
        "CreateTasks",
        "CreateToken",
        "CreateVolume",
        "DeleteMember",
        "DeleteService",
        "DeleteTasks",
        "DeleteVolume",
        "JoinManager",
        "JoinNode",
        "OpenSession",
        "RaiseFeatureLevel",
        "RegisterMember",
        "RegisterNode",
        "ReleaseAddresses",
        "RemoveMember",
        "RemoveNetwork",
        "RemoveNode",
        "RemoveSecretObject",
        "RemoveService",
        "RemoveToken",
        "RemoveVolume",
        "ReportTasks",
        "ReportVolumes",
        "ResumeRollout",
        "RollbackService",
        "ScaleService",
        "SetDesiredTaskState",
        "SetNodeConditions",
        "SetNodeStatus",
        "UpdateCluster",
        "UpdateMember",
        "UpdateNode",
        "UpdateSecretObject",
        "UpdateService",
    ];
    assert_eq!(applied.into_iter().collect::<Vec<_>>(), expected, "commands that changed a state");
}
