use std::collections::BTreeSet;
use std::io::Write;

use proptest::prelude::*;

use super::*;

mod files;
mod golden;
mod key_files;

const KEY: [u8; 32] = [7; 32];
const ID: KeyId = KeyId(3);

/// A keyring that foretells what it writes.
fn ring() -> Keyring {
    Keyring::of(ID, &KEY, 1)
}

fn stream(keyring: &Keyring, place: &[u8], plain: &[u8]) -> Vec<u8> {
    let mut writer = SealingWriter::new(keyring, place, Vec::new()).unwrap();
    writer.write_all(plain).unwrap();
    writer.finish().unwrap()
}

/// Where the chunks of a stream lie.
fn chunks(sealed: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    let mut start = HEADER;
    while start < sealed.len() {
        let length = u32::from_le_bytes(sealed[start + 1..start + 5].try_into().unwrap()) as usize;
        let end = start + 13 + length + TAG;
        found.push(start..end);
        start = end;
    }
    found
}

proptest! {
    #[test]
    fn values_open_where_they_belong_and_nowhere_else(
        plain in prop::collection::vec(any::<u8>(), 0..400),
        place in prop::collection::vec(any::<u8>(), 0..20),
        other in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let keyring = ring();
        let sealed = keyring.seal(&place, &plain).unwrap();
        prop_assert_eq!(sealed.len(), plain.len() + 29);
        prop_assert_eq!(key_id_of(&sealed).unwrap(), ID);
        prop_assert_eq!(&keyring.unseal(&place, &sealed).unwrap(), &plain);
        prop_assert_ne!(&keyring.seal(&place, &plain).unwrap(), &sealed, "each time with another nonce");
        if place != other {
            prop_assert!(matches!(keyring.unseal(&other, &sealed), Err(SealError::Refused(ID))));
        }
        let foreign = Keyring::of(ID, &[8; 32], 1);
        prop_assert!(matches!(foreign.unseal(&place, &sealed), Err(SealError::Refused(ID))));
    }

    #[test]
    fn streams_come_back_whatever_the_writes_were(
        lengths in prop::collection::vec(0usize..40_000, 0..12),
    ) {
        let keyring = ring();
        let parts: Vec<Vec<u8>> = lengths.iter().zip(1..).map(|(length, byte)| vec![byte; *length]).collect();
        let mut writer = SealingWriter::new(&keyring, b"here", Vec::new()).unwrap();
        for part in &parts {
            writer.write_all(part).unwrap();
        }
        let sealed = writer.finish().unwrap();
        prop_assert_eq!(keyring.unseal_stream(b"here", sealed).unwrap(), parts.concat());
    }
}

#[test]
fn every_damage_to_a_value_is_refused() {
    let keyring = ring();
    let sealed = keyring.seal(b"here", b"secret").unwrap();
    for length in 0..sealed.len() {
        assert!(keyring.unseal(b"here", &sealed[..length]).is_err(), "cut to {length}");
    }
    for bit in 0..sealed.len() * 8 {
        let mut bad = sealed.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let error = keyring.unseal(b"here", &bad).unwrap_err();
        let expected = match bit / 8 {
            0 => matches!(error, SealError::Format(_)),
            1..5 => matches!(error, SealError::UnknownKey(_)),
            _ => matches!(error, SealError::Refused(ID)),
        };
        assert!(expected, "bit {bit}: {error}");
    }
}

#[test]
fn unsealed_input_is_refused() {
    for first in [0x0a, 0x12, 0x08, 0xff] {
        let error = ring().unseal(b"", &[first; 64]).unwrap_err();
        assert!(matches!(error, SealError::Format(found) if found == first));
        assert!(error.to_string().contains("not sealed"));
    }
    assert!(matches!(ring().unseal(b"", &[]), Err(SealError::Short)));
}

#[test]
fn a_stream_of_any_length_ends_with_one_last_chunk() {
    const CHUNK: usize = 64 << 10;
    let sizes = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5];
    for (size, expected) in sizes.into_iter().zip([1, 1, 1, 1, 2, 2, 4]) {
        let plain: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        let keyring = ring();
        let sealed = stream(&keyring, b"here", &plain);
        assert_eq!(chunks(&sealed).len(), expected, "{size} bytes");
        assert_eq!(keyring.unseal_stream(b"here", sealed).unwrap(), plain);
    }
}

#[test]
fn a_stream_that_was_tampered_with_is_refused() {
    let keyring = ring();
    let plain = vec![b'x'; 200_000];
    let sealed = stream(&keyring, b"here", &plain);
    let other = stream(&keyring, b"here", &plain);
    let parts = chunks(&sealed);
    let of = |bytes: &[u8], order: &[usize]| {
        let chosen = order.iter().map(|at| &bytes[parts[*at].clone()]);
        [&bytes[..HEADER]].into_iter().chain(chosen).collect::<Vec<_>>().concat()
    };
    assert_eq!(keyring.unseal_stream(b"here", of(&sealed, &[0, 1, 2, 3])).unwrap(), plain);
    let open = |bytes: Vec<u8>| keyring.unseal_stream(b"here", bytes).unwrap_err();
    for (what, order) in [
        ("swapped", &[1, 0, 2, 3][..]),
        ("left out", &[0, 2, 3]),
        ("twice", &[0, 0, 1, 2, 3]),
        ("only", &[3]),
    ] {
        assert!(matches!(open(of(&sealed, order)), SealError::Refused(ID)), "{what}");
    }
    for order in [&[][..], &[0], &[0, 1, 2]] {
        assert!(matches!(open(of(&sealed, order)), SealError::Short), "{order:?}");
    }
    let mut foreign = sealed.clone();
    foreign[parts[1].clone()].copy_from_slice(&other[parts[1].clone()]);
    assert!(matches!(open(foreign), SealError::Refused(ID)), "a chunk of another stream");
    assert!(matches!(open([&sealed[..], b"more"].concat()), SealError::Trailing(4)));
    assert!(matches!(keyring.unseal_stream(b"there", sealed.clone()), Err(SealError::Refused(ID))));
    for at in (0..sealed.len()).step_by(977).chain(parts.iter().flat_map(|part| part.start..part.start + 13))
    {
        let mut bad = sealed.clone();
        bad[at] ^= 2;
        assert!(keyring.unseal_stream(b"here", bad).is_err(), "byte {at}");
    }
}

#[test]
fn a_stream_that_was_not_finished_does_not_open() {
    let (keyring, mut out) = (ring(), Vec::new());
    let mut writer = SealingWriter::new(&keyring, b"here", &mut out).unwrap();
    writer.write_all(&[1; 300_000]).unwrap();
    writer.flush().unwrap();
    drop(writer);
    assert!(out.len() > 200_000);
    assert!(matches!(keyring.unseal_stream(b"here", out), Err(SealError::Short)));
}

#[test]
fn value_and_stream_are_not_interchangeable() {
    let keyring = ring();
    let value = keyring.seal(b"here", &[0; 40]).unwrap();
    assert!(keyring.unseal_stream(b"here", value).is_err());
    assert!(keyring.unseal(b"here", &stream(&keyring, b"here", b"x")).is_err());
}

#[test]
fn ciphertext_contains_no_plaintext() {
    let keyring = ring();
    let plain = b"a name that tells much".repeat(10_000);
    let tells = |sealed: &[u8]| sealed.windows(8).any(|window| window == &plain[2..10]);
    assert!(tells(&plain));
    assert!(!tells(&keyring.seal(b"here", &plain).unwrap()));
    assert!(!tells(&stream(&keyring, b"here", &plain)));
}

#[test]
fn nonces_are_unique_and_exhaustion_stops() {
    let keyring = ring();
    let used = std::thread::scope(|scope| {
        let count = || (0..1_000).map(|_| keyring.current_key().next_counter().unwrap()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<BTreeSet<_>>()
    });
    assert_eq!(used.len(), 4_000);
    let spent = Keyring::of(ID, &KEY, u64::MAX - 1);
    spent.seal(b"", b"last").unwrap();
    for _ in 0..2 {
        assert!(matches!(spent.seal(b"", b"one more"), Err(SealError::CounterExhausted(ID))));
    }
    let Err(error) = SealingWriter::new(&spent, b"", Vec::new()) else { panic!("there is no nonce left") };
    assert!(error.to_string().contains("has reached its limit"), "{error}");
}
