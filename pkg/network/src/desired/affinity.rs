//! Client affinity: the address of a client alone decides which backend gets its connections, so that every node
//! decides the same, and no table of clients is kept.
//!
//! A hash of the address selects one of 256 buckets, and each bucket belongs to the backend with the highest weight for
//! it (rendezvous hashing): a backend that goes takes only its own buckets with it. With more than some 50 backends the
//! shares become uneven. The kernel computes the bucket in a classic BPF program for each backend.

use std::collections::BTreeSet;
use std::net::SocketAddrV4;

const LAST_BUCKET: u8 = u8::MAX;
/// 2^32 divided by the golden ratio: the upper bits of the product are spread evenly, also for neighbouring addresses.
const MULTIPLIER: u32 = 0x9e37_79b1;
/// Offset of the source address in an IPv4 header.
const SOURCE_OFFSET: u32 = 12;

/// One bit for each bucket.
type BucketSet = [u32; 8];

/// The rules that translate to `backends`; the last one takes what the others leave.
pub(super) fn rules(matches: &str, backends: &BTreeSet<SocketAddrV4>) -> Vec<String> {
    let buckets = buckets_of(backends);
    let last = backends.len().saturating_sub(1);
    let rule = |(position, (backend, buckets)): (usize, (&SocketAddrV4, BucketSet))| {
        let selected = match position == last {
            true => String::new(),
            false => format!("-m bpf --bytecode \"{}\" ", program(&buckets)),
        };
        format!("{matches} {selected}-j DNAT --to-destination {backend}")
    };
    backends.iter().zip(buckets).enumerate().map(rule).collect()
}

/// The buckets of each backend.
fn buckets_of(backends: &BTreeSet<SocketAddrV4>) -> Vec<BucketSet> {
    let mut sets = vec![BucketSet::default(); backends.len()];
    for bucket in 0..=LAST_BUCKET {
        let winner = backends.iter().enumerate().max_by_key(|(_, backend)| weight(**backend, bucket));
        if let Some((winner, _)) = winner {
            sets[winner][usize::from(bucket >> 5)] |= 1 << (bucket & 31);
        }
    }
    sets
}

/// The finalizer of SplitMix64.
fn weight(backend: SocketAddrV4, bucket: u8) -> u64 {
    let key = u64::from(u32::from(*backend.ip())) << 24 | u64::from(backend.port()) << 8 | u64::from(bucket);
    let mixed = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Accepts packets whose source address is in one of the buckets, in the form of `iptables -m bpf`: the number of
/// instructions, then code, jumps and operand of each.
fn program(buckets: &BucketSet) -> String {
    const LOAD_ABSOLUTE: u16 = 0x20;
    const LOAD_IMMEDIATE: u16 = 0x00;
    const LOAD_MEMORY: u16 = 0x60;
    const STORE: u16 = 0x02;
    const MULTIPLY: u16 = 0x24;
    const AND: u16 = 0x54;
    const SHIFT_RIGHT: u16 = 0x74;
    const SHIFT_RIGHT_BY_X: u16 = 0x7c;
    const COPY_TO_X: u16 = 0x07;
    const JUMP: u16 = 0x05;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN_ACCUMULATOR: u16 = 0x16;
    const RETURN: u16 = 0x06;
    let mut code: Vec<(u16, u8, u8, u32)> = vec![
        (LOAD_ABSOLUTE, 0, 0, SOURCE_OFFSET),
        (MULTIPLY, 0, 0, MULTIPLIER),
        (SHIFT_RIGHT, 0, 0, 24),
        (STORE, 0, 0, 0),
        // X is the bit in a word, A the number of the word.
        (AND, 0, 0, 31),
        (COPY_TO_X, 0, 0, 0),
        (LOAD_MEMORY, 0, 0, 0),
        (SHIFT_RIGHT, 0, 0, 5),
    ];
    let words = (0..).zip(buckets).filter(|(_, word)| **word != 0);
    let mut left = words.clone().count();
    for (number, word) in words {
        left -= 1;
        // Behind the further words and the return: the test of the bit.
        let to_test = u32::try_from(3 * left + 1).unwrap_or_default();
        code.extend([(JUMP_IF_EQUAL, 0, 2, number), (LOAD_IMMEDIATE, 0, 0, *word), (JUMP, 0, 0, to_test)]);
    }
    code.extend([
        (RETURN, 0, 0, 0),
        (SHIFT_RIGHT_BY_X, 0, 0, 0),
        (AND, 0, 0, 1),
        (RETURN_ACCUMULATOR, 0, 0, 0),
    ]);
    let instructions =
        code.iter().map(|(code, if_true, if_false, k)| format!(",{code} {if_true} {if_false} {k}"));
    format!("{}{}", code.len(), instructions.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backends(count: u32) -> BTreeSet<SocketAddrV4> {
        (0..count).map(|i| SocketAddrV4::new((0x0ad2_0102 + i).into(), 80)).collect()
    }

    #[test]
    fn every_bucket_has_one_backend_and_shares_are_near() {
        for count in [1, 2, 3, 10, 50] {
            let sets = buckets_of(&backends(count));
            let shares: Vec<u32> =
                sets.iter().map(|set| set.iter().map(|word| word.count_ones()).sum()).collect();
            assert_eq!(shares.iter().sum::<u32>(), 256, "{count}");
            let fair = 256 / count;
            assert!(shares.iter().all(|share| (fair / 4..=fair * 3).contains(share)), "{count}: {shares:?}");
        }
    }

    #[test]
    fn backend_that_goes_takes_only_its_own_buckets() {
        let all = backends(10);
        let before = buckets_of(&all);
        for (position, gone) in all.iter().enumerate() {
            let mut left = all.clone();
            left.remove(gone);
            let mut kept = before.clone();
            kept.remove(position);
            for (kept, after) in kept.iter().zip(buckets_of(&left)) {
                assert!(kept.iter().zip(after).all(|(kept, after)| kept & after == *kept));
            }
        }
    }

    #[test]
    fn programs_fit_into_a_rule() {
        for count in [1, 2, 100, 300] {
            for buckets in buckets_of(&backends(count)) {
                let length: usize = program(&buckets).split(',').next().unwrap().parse().unwrap();
                assert!((9..=64).contains(&length), "{length}");
            }
        }
    }
}
