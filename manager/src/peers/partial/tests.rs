use xxhash_rust::xxh3::xxh3_64;

use super::*;

fn key(index: u64, bytes: &[u8]) -> Key {
    Key { life: 1, index, term: 1, size: bytes.len() as u64, digest: xxh3_64(bytes) }
}

fn reign(life: u64, term: u64) -> Reign {
    Reign { life, term }
}

/// A claim, and how many bytes are there.
#[track_caller]
fn part(partials: &Partials, key: Key, term: u64) -> (Claim, u64) {
    match partials.claim(key, term).unwrap() {
        Claimed::Part(claim, there) => (claim, there),
        Claimed::Whole(_) => panic!("all of it is there"),
    }
}

#[test]
fn the_next_try_goes_on_where_the_last_one_broke() {
    let (partials, key) = (Partials::default(), key(5, b"abcdef"));
    let (first, there) = part(&partials, key, 1);
    assert_eq!((there, first.add(b"abc")), (0, Ok(false)));
    // A new leader that has the same snapshot.
    let (second, there) = part(&partials, key, 2);
    assert_eq!(there, 3);
    assert_eq!(first.add(b"d"), Err(PartialError::Superseded), "the first connection may still hang");
    assert_eq!(first.whole().err(), Some(PartialError::Superseded));
    first.forget();
    assert_eq!(second.add(b"def"), Ok(true));
    assert_eq!(&second.whole().unwrap().bytes[..], b"abcdef");
    assert_eq!(second.whole().err(), Some(PartialError::Superseded), "it is gone");
    assert_eq!(part(&partials, key, 2).1, 0);
}

#[test]
fn another_snapshot_begins_anew() {
    let partials = Partials::default();
    let (first, _) = part(&partials, key(5, b"abcdef"), 1);
    first.add(b"abc").unwrap();
    let same = key(5, b"abcdef");
    for other in [key(6, b"abcdef"), key(5, b"abcdefg"), key(5, b"abcdez"), Key { term: 2, ..same }] {
        let (claim, there) = part(&partials, other, 1);
        assert_eq!((there, claim.add(b"a")), (0, Ok(false)));
    }
}

#[test]
fn a_leader_of_before_does_not_wipe_what_a_later_one_sends() {
    let partials = Partials::default();
    let (newer, _) = part(&partials, key(9, b"abcdef"), 3);
    newer.add(b"abc").unwrap();
    for other in [key(5, b"abc"), key(9, b"abcdef")] {
        let refused = partials.claim(other, 2).err();
        assert_eq!(refused, Some(PartialError::Outdated { newer: reign(1, 3), found: reign(1, 2) }));
    }
    assert_eq!(newer.add(b"def"), Ok(true), "it goes on");
    drop(newer.whole().unwrap());
    assert_eq!(
        part(&partials, key(5, b"abc"), 2).1,
        0,
        "it is over, and raft knows what to make of the other"
    );
}

#[test]
fn what_came_in_another_life_keeps_nobody_out() {
    let partials = Partials::default();
    let old = key(9, b"abcdef");
    part(&partials, old, 50).0.add(b"abc").unwrap();
    // A cluster that was restored counts its terms anew.
    let new = Key { life: 2, ..old };
    let (claim, there) = part(&partials, new, 5);
    assert_eq!((there, claim.add(b"abc")), (0, Ok(false)), "nothing of the other one is taken for it");
    let refused = partials.claim(old, 51).err();
    assert_eq!(refused, Some(PartialError::Outdated { newer: reign(2, 5), found: reign(1, 51) }));
    assert_eq!(claim.add(b"def"), Ok(true), "it goes on");
}

#[test]
fn what_is_made_durable_is_not_sent_again_meanwhile() {
    let partials = Partials::default();
    let there = |index: u64| {
        let (claim, _) = part(&partials, key(index, b"abc"), 1);
        claim.add(b"abc").unwrap();
        claim.whole().unwrap()
    };
    let first = there(5);
    let second = match partials.claim(key(5, b"abc"), 2).unwrap() {
        Claimed::Whole(whole) => whole,
        Claimed::Part(..) => panic!("it is there"),
    };
    assert_eq!(second.bytes, first.bytes);
    drop(first);
    assert!(matches!(partials.claim(key(5, b"abc"), 2), Ok(Claimed::Whole(_))), "somebody is at it still");
    let third = there(6);
    assert_eq!(partials.claim(key(7, b"abc"), 3).err(), Some(PartialError::Busy));
    drop((second, third));
    assert_eq!(part(&partials, key(5, b"abc"), 3).1, 0);
}

#[test]
fn what_cannot_be_is_refused() {
    let partials = Partials::default();
    let large = Key { size: MOST + 1, ..key(5, b"ab") };
    assert_eq!(partials.claim(large, 1).err(), Some(PartialError::TooLarge(MOST + 1)));
    let (claim, _) = part(&partials, key(5, b"ab"), 1);
    assert_eq!(claim.add(b""), Err(PartialError::Empty));
    assert_eq!(claim.add(b"abc"), Err(PartialError::TooMuch { found: 3, size: 2 }));
    assert_eq!(claim.add(b"ax"), Ok(true));
    assert!(matches!(claim.whole().err(), Some(PartialError::Damaged { .. })));
    assert_eq!(part(&partials, key(5, b"ab"), 1).1, 0, "nothing of it is kept");
}
