use xxhash_rust::xxh3::xxh3_64;

use super::*;

fn key(index: u64, bytes: &[u8]) -> SnapshotKey {
    SnapshotKey { incarnation: 1, index, term: 1, size: bytes.len() as u64, digest: xxh3_64(bytes) }
}

fn leader_term(incarnation: u64, term: u64) -> LeaderTerm {
    LeaderTerm { incarnation, term }
}

/// A claim, and the number of bytes already received.
#[track_caller]
fn claim_partial(partials: &PartialSnapshots, key: SnapshotKey, term: u64) -> (ReceiveClaim, u64) {
    match partials.claim(key, term).unwrap() {
        ClaimOutcome::Partial(claim, there) => (claim, there),
        ClaimOutcome::Complete(_) => panic!("all of it is there"),
    }
}

#[test]
fn retry_resumes_at_last_offset() {
    let (partials, key) = (PartialSnapshots::default(), key(5, b"abcdef"));
    let (first, there) = claim_partial(&partials, key, 1);
    assert_eq!((there, first.append(b"abc")), (0, Ok(false)));
    // A new leader with the same snapshot.
    let (second, there) = claim_partial(&partials, key, 2);
    assert_eq!(there, 3);
    assert_eq!(
        first.append(b"d"),
        Err(SnapshotReceiveError::Superseded),
        "the first connection may still hang"
    );
    assert_eq!(first.complete().err(), Some(SnapshotReceiveError::Superseded));
    first.discard();
    assert_eq!(second.append(b"def"), Ok(true));
    assert_eq!(&second.complete().unwrap().bytes[..], b"abcdef");
    assert_eq!(second.complete().err(), Some(SnapshotReceiveError::Superseded), "it is gone");
    assert_eq!(claim_partial(&partials, key, 2).1, 0);
}

#[test]
fn other_snapshot_restarts() {
    let partials = PartialSnapshots::default();
    let (first, _) = claim_partial(&partials, key(5, b"abcdef"), 1);
    first.append(b"abc").unwrap();
    let same = key(5, b"abcdef");
    for other in [key(6, b"abcdef"), key(5, b"abcdefg"), key(5, b"abcdez"), SnapshotKey { term: 2, ..same }] {
        let (claim, there) = claim_partial(&partials, other, 1);
        assert_eq!((there, claim.append(b"a")), (0, Ok(false)));
    }
}

#[test]
fn older_leader_does_not_replace_newer_snapshot() {
    let partials = PartialSnapshots::default();
    let (newer, _) = claim_partial(&partials, key(9, b"abcdef"), 3);
    newer.append(b"abc").unwrap();
    for other in [key(5, b"abc"), key(9, b"abcdef")] {
        let refused = partials.claim(other, 2).err();
        assert_eq!(
            refused,
            Some(SnapshotReceiveError::StaleTerm { newer: leader_term(1, 3), found: leader_term(1, 2) })
        );
    }
    assert_eq!(newer.append(b"def"), Ok(true), "it goes on");
    drop(newer.complete().unwrap());
    assert_eq!(
        claim_partial(&partials, key(5, b"abc"), 2).1,
        0,
        "it is over, and raft knows what to make of the other"
    );
}

#[test]
fn partial_of_other_incarnation_is_replaced() {
    let partials = PartialSnapshots::default();
    let old = key(9, b"abcdef");
    claim_partial(&partials, old, 50).0.append(b"abc").unwrap();
    // Terms restart in a restored cluster.
    let new = SnapshotKey { incarnation: 2, ..old };
    let (claim, there) = claim_partial(&partials, new, 5);
    assert_eq!((there, claim.append(b"abc")), (0, Ok(false)), "nothing of the other one is taken for it");
    let refused = partials.claim(old, 51).err();
    assert_eq!(
        refused,
        Some(SnapshotReceiveError::StaleTerm { newer: leader_term(2, 5), found: leader_term(1, 51) })
    );
    assert_eq!(claim.append(b"def"), Ok(true), "it goes on");
}

#[test]
fn complete_snapshot_is_not_sent_again() {
    let partials = PartialSnapshots::default();
    let there = |index: u64| {
        let (claim, _) = claim_partial(&partials, key(index, b"abc"), 1);
        claim.append(b"abc").unwrap();
        claim.complete().unwrap()
    };
    let first = there(5);
    let second = match partials.claim(key(5, b"abc"), 2).unwrap() {
        ClaimOutcome::Complete(whole) => whole,
        ClaimOutcome::Partial(..) => panic!("it is there"),
    };
    assert_eq!(second.bytes, first.bytes);
    drop(first);
    assert!(
        matches!(partials.claim(key(5, b"abc"), 2), Ok(ClaimOutcome::Complete(_))),
        "somebody is at it still"
    );
    let third = there(6);
    assert_eq!(partials.claim(key(7, b"abc"), 3).err(), Some(SnapshotReceiveError::Busy));
    drop((second, third));
    assert_eq!(claim_partial(&partials, key(5, b"abc"), 3).1, 0);
}

#[test]
fn invalid_snapshot_is_refused() {
    let partials = PartialSnapshots::default();
    let large = SnapshotKey { size: MAX_SNAPSHOT_BYTES + 1, ..key(5, b"ab") };
    assert_eq!(partials.claim(large, 1).err(), Some(SnapshotReceiveError::TooLarge(MAX_SNAPSHOT_BYTES + 1)));
    let (claim, _) = claim_partial(&partials, key(5, b"ab"), 1);
    assert_eq!(claim.append(b""), Err(SnapshotReceiveError::EmptyFrame));
    assert_eq!(claim.append(b"abc"), Err(SnapshotReceiveError::ExceedsAnnouncedSize { found: 3, size: 2 }));
    assert_eq!(claim.append(b"ax"), Ok(true));
    assert!(matches!(claim.complete().err(), Some(SnapshotReceiveError::DigestMismatch { .. })));
    assert_eq!(claim_partial(&partials, key(5, b"ab"), 1).1, 0, "nothing of it is kept");
}
