//! Majority vote over state digests at equal log indexes. Equal entries produce equal states, so two states
//! that differ after the same entry are the result of a defect: of a program, of memory or of a disk. Nothing
//! repairs that, and each manager would continue to plan and to answer from its own state; so the difference
//! is reported. Start reading at `compare_digests`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use warren_core::StateDigest;
use warren_types::MemberId;

/// The state of a manager differs from that of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDivergence {
    /// Its own digest.
    pub actual: StateDigest,
    /// The digest of the others after the same entry.
    pub expected: u64,
    /// The managers with the expected digest.
    pub agreeing: Vec<MemberId>,
    /// Why the expected digest counts as right.
    pub evidence: DivergenceEvidence,
}

/// The evidence for the expected digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DivergenceEvidence {
    /// More than half of this number of managers have it.
    Majority(usize),
    /// The leader has it, but no majority does. The leader's state may be the wrong one.
    Leader,
}

impl fmt::Display for StateDivergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { actual: StateDigest { index, value }, expected, agreeing, evidence } = self;
        let agreeing: Vec<String> = agreeing.iter().map(|member| format!("manager {member}")).collect();
        let agreeing = agreeing.join(" and ");
        let action = match evidence {
            DivergenceEvidence::Majority(_) => "remove it from the cluster and let it join again",
            DivergenceEvidence::Leader => {
                "the wrong state cannot be determined while no majority of the managers has the same digest: \
                 remove none, and start the managers that are down, so that they are compared as well"
            }
        };
        write!(
            f,
            "state digest at index {index} is {value:016x}, expected {expected:016x} as on {agreeing}: \
             {action}"
        )
    }
}

/// The last result for each manager.
#[derive(Debug, Clone, Default)]
pub struct DigestComparison(BTreeMap<MemberId, Option<StateDivergence>>);

/// What a comparison found about a manager that must be reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ComparisonReport {
    /// Its state differs. Reported at every comparison, since it must not be overlooked.
    Diverged(StateDivergence),
    /// Its state matches the others again.
    Recovered,
}

impl DigestComparison {
    /// The divergence of this manager's state, if known.
    pub fn divergence(&self, member: MemberId) -> Option<StateDivergence> {
        self.0.get(&member).cloned().flatten()
    }

    /// All compared managers, and whether each diverges.
    pub fn results(&self) -> Vec<(MemberId, bool)> {
        self.0.iter().map(|(member, difference)| (*member, difference.is_some())).collect()
    }

    /// Compares the reported digests. The last result of a manager that could not be compared stays while it
    /// is one of the `members`. Without a majority, a manager that differs from the `leader` diverges, but no
    /// state counts as right.
    pub fn record_digests(
        &mut self,
        reported: &BTreeMap<MemberId, Vec<StateDigest>>,
        leader: Option<MemberId>,
        members: &BTreeSet<MemberId>,
    ) -> Vec<(MemberId, ComparisonReport)> {
        let results = &mut self.0;
        results.retain(|member, _| members.contains(member));
        for difference in results.values_mut() {
            // A divergence that was only based on managers that have left is not known any more.
            let has_left = |known: &StateDivergence| {
                known.evidence == DivergenceEvidence::Leader
                    && !known.agreeing.iter().any(|other| members.contains(other))
            };
            if difference.as_ref().is_some_and(has_left) {
                *difference = None;
            }
        }
        let mut reports = Vec::new();
        for (member, verdict) in compare_digests(reported, leader, results) {
            match (&verdict, results.get(&member)) {
                (Comparison::Diverged(difference), _) => {
                    reports.push((member, ComparisonReport::Diverged(difference.clone())));
                }
                (Comparison::Matching, Some(Some(_))) => reports.push((member, ComparisonReport::Recovered)),
                (Comparison::Matching | Comparison::Undecided, _) => {}
            }
            match verdict {
                Comparison::Matching => *results.entry(member).or_default() = None,
                Comparison::Diverged(difference) => *results.entry(member).or_default() = Some(difference),
                Comparison::Undecided => _ = results.entry(member).or_default(),
            }
        }
        reports
    }
}

/// The result of the comparison for one manager.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Comparison {
    /// The majority has its state.
    Matching,
    Diverged(StateDivergence),
    /// Neither its state nor another one has a majority. The last result stays.
    Undecided,
}

impl Comparison {
    fn is_diverged_by_majority(&self) -> bool {
        matches!(self, Self::Diverged(StateDivergence { evidence: DivergenceEvidence::Majority(_), .. }))
    }
}

/// Compares all comparable digests. The majority's digest at an index is right. `known` has the previous
/// results: a manager that a majority found diverged has no vote in a comparison of fewer managers, and stays
/// diverged, even as the leader.
fn compare_digests(
    reported: &BTreeMap<MemberId, Vec<StateDigest>>,
    leader: Option<MemberId>,
    known: &BTreeMap<MemberId, Option<StateDivergence>>,
) -> BTreeMap<MemberId, Comparison> {
    let mut entries = BTreeMap::<u64, BTreeMap<MemberId, u64>>::new();
    for (member, digests) in reported {
        for StateDigest { index, value } in digests {
            entries.entry(*index).or_default().insert(*member, *value);
        }
    }
    let mut entries: Vec<_> = entries.into_iter().collect();
    // Comparisons of more managers count first, then newer ones.
    entries.sort_by_key(|(index, values)| std::cmp::Reverse((values.len(), *index)));
    let mut comparisons = BTreeMap::new();
    for (index, mut values) in entries {
        let compared = values.len();
        values.retain(|member, _| {
            let outvoted = outvoted_by(known, *member).is_some_and(|of| of > compared);
            let already_diverged =
                comparisons.get(member).is_some_and(|it: &Comparison| it.is_diverged_by_majority());
            !outvoted && !already_diverged
        });
        let Some((expected, evidence)) = expected_value(&values, leader).filter(|_| values.len() > 1) else {
            continue;
        };
        let agreeing: Vec<_> =
            values.iter().filter(|(_, value)| **value == expected).map(|(id, _)| *id).collect();
        for (member, value) in values {
            comparisons.entry(member).or_insert_with(|| match evidence {
                DivergenceEvidence::Majority(_) if value == expected => Comparison::Matching,
                DivergenceEvidence::Leader if value == expected || outvoted_by(known, member).is_some() => {
                    Comparison::Undecided
                }
                _ => {
                    let actual = StateDigest { index, value };
                    Comparison::Diverged(StateDivergence {
                        actual,
                        expected,
                        agreeing: agreeing.clone(),
                        evidence,
                    })
                }
            });
        }
    }
    comparisons
}

/// The number of managers of the majority that found this one diverged, if one did.
fn outvoted_by(known: &BTreeMap<MemberId, Option<StateDivergence>>, member: MemberId) -> Option<usize> {
    match known.get(&member)?.as_ref()?.evidence {
        DivergenceEvidence::Majority(of) => Some(of),
        DivergenceEvidence::Leader => None,
    }
}

/// The expected digest, if it can be determined.
fn expected_value(
    values: &BTreeMap<MemberId, u64>,
    leader: Option<MemberId>,
) -> Option<(u64, DivergenceEvidence)> {
    let is_of_most = |value: &&u64| 2 * values.values().filter(|other| other == value).count() > values.len();
    let of_most =
        values.values().find(is_of_most).map(|value| (*value, DivergenceEvidence::Majority(values.len())));
    let of_leader =
        || leader.and_then(|leader| values.get(&leader)).map(|value| (*value, DivergenceEvidence::Leader));
    of_most.or_else(of_leader)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(member, [(index, value)])`.
    type DigestTable<'a> = &'a [(MemberId, &'a [(u64, u64)])];

    fn digests(reported: DigestTable) -> BTreeMap<MemberId, Vec<StateDigest>> {
        let digests = |of: &[(u64, u64)]| {
            of.iter().map(|(index, value)| StateDigest { index: *index, value: *value }).collect()
        };
        reported.iter().map(|(member, of)| (*member, digests(of))).collect()
    }

    /// `expected`: the compared managers, those expected to be diverged, and the index.
    #[track_caller]
    fn check(these: DigestTable, leader: Option<MemberId>, expected: &[(MemberId, Option<u64>)]) {
        let judged = compare_digests(&digests(these), leader, &BTreeMap::new());
        let at = |verdict: &Comparison| match verdict {
            Comparison::Diverged(difference) => Some(difference.actual.index),
            Comparison::Matching | Comparison::Undecided => None,
        };
        let found: Vec<_> = judged.iter().map(|(id, verdict)| (*id, at(verdict))).collect();
        assert_eq!(found, expected, "{these:?}");
    }

    #[test]
    fn minority_digest_is_divergent() {
        check(&[(1, &[(7, 1)]), (2, &[(7, 1)]), (3, &[(7, 1)])], Some(1), &[(1, None), (2, None), (3, None)]);
        check(
            &[(1, &[(7, 1)]), (2, &[(7, 1)]), (3, &[(7, 2)])],
            Some(1),
            &[(1, None), (2, None), (3, Some(7))],
        );
        // The leader as well.
        check(
            &[(1, &[(7, 2)]), (2, &[(7, 1)]), (3, &[(7, 1)])],
            Some(1),
            &[(1, Some(7)), (2, None), (3, None)],
        );
    }

    #[test]
    fn without_majority_leader_digest_is_expected() {
        let two: DigestTable = &[(1, &[(7, 1)]), (2, &[(7, 2)])];
        let four: DigestTable = &[(1, &[(7, 2)]), (2, &[(7, 1)]), (3, &[(7, 1)]), (4, &[(7, 2)])];
        // A majority of the compared managers is not enough.
        let five: DigestTable =
            &[(1, &[(7, 1)]), (2, &[(7, 2)]), (3, &[(7, 3)]), (4, &[(7, 2)]), (5, &[(7, 4)])];
        let table: &[(DigestTable, Option<MemberId>, &[MemberId])] = &[
            (two, Some(1), &[2]),
            (two, Some(2), &[1]),
            (four, Some(1), &[2, 3]),
            (four, Some(2), &[1, 4]),
            (five, Some(1), &[2, 3, 4, 5]),
            (five, Some(2), &[1, 3, 5]),
        ];
        for (these, leader, expected) in table {
            let mut agreement = DigestComparison::default();
            let of: BTreeSet<_> = these.iter().map(|(member, _)| *member).collect();
            agreement.record_digests(&digests(these), *leader, &of);
            let differ: Vec<_> =
                agreement.results().into_iter().filter_map(|(id, it)| it.then_some(id)).collect();
            assert_eq!(
                (differ, agreement.results().len()),
                (expected.to_vec(), of.len()),
                "{these:?} {leader:?}"
            );
            let text = agreement.divergence(expected[0]).unwrap().to_string();
            assert!(text.contains("cannot be determined") && !text.contains("remove it"), "{text}");
            // No leader, or the leader was not compared.
            for leader in [None, Some(9)] {
                assert_eq!(
                    compare_digests(&digests(these), leader, &BTreeMap::new()),
                    BTreeMap::new(),
                    "{these:?}"
                );
            }
        }
    }

    #[test]
    fn majority_result_outweighs_later_minority() {
        let (mut agreement, three) = (DigestComparison::default(), BTreeSet::from([1, 2, 3]));
        agreement.record_digests(
            &digests(&[(1, &[(7, 1)]), (2, &[(7, 1)]), (3, &[(7, 2)])]),
            Some(1),
            &three,
        );
        let (found, difference) = ([(1, false), (2, false), (3, true)], agreement.divergence(3));
        // The first manager is down, and the third leads.
        let two: DigestTable = &[(2, &[(9, 1)]), (3, &[(9, 2)])];
        for leader in [Some(3), Some(2), None] {
            agreement.record_digests(&digests(two), leader, &three);
            assert_eq!((agreement.results(), agreement.divergence(3)), (found.to_vec(), difference.clone()));
        }
        // The first manager was removed, and a new one got the wrong state from the leader.
        let members = BTreeSet::from([2, 3, 4, 5]);
        agreement.record_digests(&digests(two), Some(3), &members);
        let four: DigestTable = &[(2, &[(9, 1)]), (3, &[(9, 2)]), (4, &[(9, 2)]), (5, &[(9, 1)])];
        for leader in [5, 3] {
            agreement.record_digests(&digests(four), Some(leader), &members);
            assert_eq!(agreement.divergence(3), difference, "as many say this as that");
        }
        assert_eq!(agreement.divergence(2).unwrap().evidence, DivergenceEvidence::Leader);
        // At least as many managers as before agree.
        let healed: DigestTable = &[(2, &[(11, 1)]), (3, &[(11, 1)]), (4, &[(11, 2)]), (5, &[(11, 1)])];
        agreement.record_digests(&digests(healed), Some(3), &members);
        assert_eq!(agreement.results(), [(2, false), (3, false), (4, true), (5, false)]);
    }

    #[test]
    fn divergent_member_has_no_vote() {
        let these: DigestTable =
            &[(1, &[(7, 1)]), (2, &[(7, 1)]), (3, &[(7, 2), (9, 2)]), (4, &[(9, 1)]), (5, &[(9, 1)])];
        check(these, Some(3), &[(1, None), (2, None), (3, Some(9)), (4, None), (5, None)]);
        // A manager is not diverged without others to compare with.
        check(&these[..4], Some(3), &[(1, None), (2, None), (3, Some(7))]);
    }

    #[test]
    fn only_equal_indexes_are_compared() {
        check(&[(1, &[(7, 1)]), (2, &[(8, 2)])], Some(1), &[]);
        check(&[(1, &[(7, 1), (9, 3)]), (2, &[(8, 2)]), (3, &[(9, 3)])], Some(1), &[(1, None), (3, None)]);
        // The newest comparison decides, regardless of earlier ones.
        check(&[(1, &[(7, 1), (9, 3)]), (2, &[(7, 2), (9, 3)])], Some(1), &[(1, None), (2, None)]);
        check(&[(1, &[(7, 1), (9, 3)]), (2, &[(7, 1), (9, 4)])], Some(1), &[(1, None), (2, Some(9))]);
        // A comparison of more managers takes precedence.
        let three: DigestTable = &[(1, &[(7, 2), (9, 4)]), (2, &[(7, 1), (9, 3)]), (3, &[(7, 1)])];
        check(three, Some(1), &[(1, Some(7)), (2, None), (3, None)]);
        check(&[], None, &[]);
    }

    #[test]
    fn departed_member_is_not_compared() {
        let mut agreement = DigestComparison::default();
        agreement.record_digests(
            &digests(&[(1, &[(7, 1)]), (2, &[(7, 2)])]),
            Some(1),
            &BTreeSet::from([1, 2]),
        );
        assert_eq!(agreement.results(), [(1, false), (2, true)]);
        agreement.record_digests(&BTreeMap::new(), None, &BTreeSet::from([2]));
        assert_eq!(agreement.results(), [(2, false)]);
    }

    #[test]
    fn result_is_kept_until_next_comparison() {
        let (mut agreement, three) = (DigestComparison::default(), BTreeSet::from([1, 2, 3]));
        let wrong = digests(&[(1, &[(7, 1)]), (2, &[(7, 1)]), (3, &[(7, 2)])]);
        agreement.record_digests(&wrong, Some(1), &three);
        assert_eq!(agreement.results(), [(1, false), (2, false), (3, true)]);
        let difference = agreement.divergence(3).unwrap();
        assert_eq!(difference.agreeing, [1, 2]);
        assert_eq!(
            difference.to_string(),
            "state digest at index 7 is 0000000000000002, expected 0000000000000001 as on manager 1 and \
             manager 2: remove it from the cluster and let it join again"
        );
        // The manager is down.
        agreement.record_digests(&digests(&[(1, &[(9, 1)]), (2, &[(9, 1)])]), Some(1), &three);
        assert_eq!(agreement.divergence(3), Some(difference));
        // The state was replaced by the right one.
        agreement.record_digests(
            &digests(&[(1, &[(11, 1)]), (2, &[(11, 1)]), (3, &[(11, 1)])]),
            Some(1),
            &three,
        );
        assert_eq!(agreement.results(), [(1, false), (2, false), (3, false)]);
        // The manager left the cluster.
        agreement.record_digests(&wrong, Some(1), &three);
        agreement.record_digests(&BTreeMap::new(), Some(1), &BTreeSet::from([1, 2]));
        assert_eq!(agreement.results(), [(1, false), (2, false)]);
    }
}
