//! A member restarts with data that is older than what it acknowledged, and the leader is lost.

use warren_consensus::{
    AcknowledgedEntry, DurabilityStatus, DurableWrite, Effect, EntryKind, Event, LogPosition, MessageKind,
    PersistentState, RaftConfig, RaftEntry, RaftMachine,
};
use warren_log::MemoryDisk;

use crate::{
    member::{MemberOutput, TestMember},
    network::TestNetwork,
    slow_disk::message,
};

/// Three voters, one of which receives the leader's heartbeats and no entries, while five commands are
/// acknowledged. Then the data of the other follower is replaced by an older copy, and the leader is down.
struct RegressionScenario {
    network: TestNetwork,
    leader: u64,
    restored: u64,
    behind: u64,
    /// The last entry that all three have, and the last one that was acknowledged.
    common: u64,
    acknowledged: u64,
}

impl RegressionScenario {
    fn new(seed: u64) -> Self {
        let mut network = TestNetwork::new(3, seed);
        let leader = network.elect();
        let (restored, behind) = (1 + leader % 3, 1 + (leader + 1) % 3);
        network.tick(3);
        let common = last_applied(&network, leader);
        let image = image_of(&mut network, restored);
        for _ in 0..5 {
            network.propose(leader);
            for _ in 0..4 {
                network.with(leader, |member| member.handle(Event::Tick));
                settle_without_entries_for(&mut network, behind);
            }
        }
        let acknowledged = last_applied(&network, leader);
        assert_eq!(acknowledged, common + 5);
        assert_eq!(last_applied(&network, behind), common);
        network.with(leader, TestMember::crash);
        network.in_flight.clear();
        restore(&mut network, restored, image);
        Self { network, leader, restored, behind, common, acknowledged }
    }

    fn durability(&mut self, id: u64) -> DurabilityStatus {
        self.network.member(id).durability
    }
}

fn last_applied(network: &TestNetwork, id: u64) -> u64 {
    network.members[id as usize - 1].state().last().map_or(0, |(index, ..)| *index)
}

fn image_of(network: &mut TestNetwork, id: u64) -> MemoryDisk {
    network.member(id).disk.clone_durable()
}

fn restore(network: &mut TestNetwork, id: u64, image: MemoryDisk) {
    network.with(id, TestMember::crash);
    network.member(id).disk = image;
}

/// Delivers everything except entries for `behind`.
fn settle_without_entries_for(network: &mut TestNetwork, behind: u64) {
    loop {
        for id in network.ids() {
            network.with(id, TestMember::write_all);
        }
        let flying = std::mem::take(&mut network.in_flight);
        if flying.is_empty() {
            return;
        }
        for flying in flying {
            let (to, kind) = (flying.message.to, flying.message.kind);
            if to == behind && kind == MessageKind::Append {
                network.drop_message(flying, false);
            } else {
                network.deliver(to, vec![flying]);
            }
        }
    }
}

#[test]
fn regressed_member_elects_no_leader_without_its_entries() {
    for seed in 0..20 {
        let mut scene = RegressionScenario::new(seed);
        let RegressionScenario { restored, leader, behind, acknowledged, .. } = scene;
        let led = scene.network.oracle.terms_with_leaders();
        scene.network.start(restored);
        scene.network.tick(100);
        assert_eq!(scene.network.oracle.terms_with_leaders(), led, "seed {seed}");
        let regressed = scene.durability(restored).missing_entry.expect("it was told");
        assert_eq!(regressed.index, acknowledged, "seed {seed}");
        assert_eq!(scene.durability(behind), DurabilityStatus::default());
        // The member with all entries returns.
        scene.network.start(leader);
        assert_eq!(scene.network.elect(), leader, "seed {seed}");
        scene.network.tick(10);
        assert_eq!(scene.durability(restored), DurabilityStatus::default(), "seed {seed}");
        scene.network.oracle.check_answers();
        // By now its vote counts again.
        scene.network.with(leader, TestMember::crash);
        scene.network.elect();
        scene.network.oracle.check_answers();
    }
}

#[test]
fn regressed_member_catches_up_in_same_term() {
    for seed in 0..20 {
        let mut network = TestNetwork::new(3, seed);
        let leader = network.elect();
        let restored = 1 + leader % 3;
        let image = image_of(&mut network, restored);
        for _ in 0..5 {
            network.propose(leader);
            network.settle();
        }
        restore(&mut network, restored, image);
        let led = network.oracle.terms_with_leaders();
        network.start(restored);
        network.tick(10);
        assert_eq!(network.oracle.terms_with_leaders(), led, "the leader stays, seed {seed}");
        assert_eq!(last_applied(&network, restored), last_applied(&network, leader), "seed {seed}");
        assert_eq!(network.member(restored).durability, DurabilityStatus::default());
    }
}

#[test]
fn regressed_member_votes_for_complete_log() {
    for seed in 0..20 {
        let mut network = TestNetwork::new(3, seed);
        let leader = network.elect();
        let restored = 1 + leader % 3;
        let image = image_of(&mut network, restored);
        for _ in 0..5 {
            network.propose(leader);
            network.tick(3);
        }
        network.with(leader, TestMember::crash);
        network.in_flight.clear();
        restore(&mut network, restored, image);
        network.start(restored);
        assert_eq!(network.elect(), 1 + (leader + 1) % 3, "seed {seed}");
        network.tick(10);
        assert_eq!(network.member(restored).durability, DurabilityStatus::default(), "seed {seed}");
        network.oracle.check_answers();
    }
}

#[test]
fn accepted_data_loss_is_reported_by_all() {
    for seed in 0..20 {
        let mut scene = RegressionScenario::new(seed);
        let RegressionScenario { restored, behind, common, acknowledged, .. } = scene;
        scene.network.oracle.expect_lost_after(common);
        scene.network.member(restored).accept_data_loss = true;
        scene.network.start(restored);
        let elected = scene.network.elect();
        assert!([restored, behind].contains(&elected), "seed {seed}");
        scene.network.tick(3);
        for id in [restored, behind] {
            let durability = DurabilityStatus { missing_entry: None, lost_entry: Some(acknowledged) };
            assert_eq!(scene.durability(id), durability, "member {id}, seed {seed}");
        }
    }
}

/// Only the old leader knew, so no member could prevent it.
#[test]
fn returning_leader_reports_lost_entries() {
    let mut scene = RegressionScenario::new(3);
    let RegressionScenario { restored, behind, leader, common, acknowledged, .. } = scene;
    scene.network.oracle.expect_lost_after(common);
    // A member that was down received nothing.
    let image = RegressionScenario::new(3).network.member(restored).disk.clone_durable();
    restore(&mut scene.network, behind, image);
    for id in [restored, behind] {
        scene.network.start(id);
    }
    scene.network.elect();
    scene.network.tick(3);
    for id in [restored, behind] {
        assert_eq!(scene.durability(id), DurabilityStatus::default());
    }
    let returning = scene.network.member(leader);
    returning.start(9);
    let mut fatal = None;
    for _ in 0..20 {
        for message in std::mem::take(&mut scene.network.member(leader).outbox) {
            let to = message.to;
            scene.network.with(to, |member| member.handle(Event::MessageReceived(message)));
        }
        scene.network.member(leader).write_all();
        for id in [restored, behind] {
            scene.network.with(id, |member| member.handle(Event::Tick));
            scene.network.with(id, TestMember::write_all);
        }
        for flying in std::mem::take(&mut scene.network.in_flight) {
            let to = flying.message.to;
            match to == leader {
                true => scene.network.member(to).handle(Event::MessageReceived(flying.message)),
                false => scene.network.deliver(to, vec![flying]),
            }
        }
        let outcomes = scene.network.member(leader).take_outcomes();
        fatal = fatal.or(outcomes.into_iter().find(|outcome| matches!(outcome, MemberOutput::Fatal(_))));
    }
    assert!(fatal.is_some(), "it has what the group replaced");
    for id in [restored, behind] {
        // Its last commit index was not written.
        let lost = scene.durability(id).lost_entry;
        assert!(lost.is_some_and(|lost| (acknowledged - 1..=acknowledged).contains(&lost)), "{id}: {lost:?}");
    }
}

fn entry(index: u64) -> RaftEntry {
    RaftEntry { index, term: 1, kind: EntryKind::Command, data: b"x".as_slice().into() }
}

fn persist(effects: &[Effect]) -> Option<&DurableWrite> {
    effects.iter().find_map(|effect| match effect {
        Effect::Persist(persist) => Some(persist),
        _ => None,
    })
}

/// An idle group writes nothing, so new acknowledgements wait for the next entry.
#[test]
fn acknowledgements_are_persisted_with_next_write() {
    let restored = PersistentState { entries: vec![entry(1)], ..PersistentState::bootstrap([1, 2, 3]) };
    let restored = PersistentState {
        hard_state: warren_consensus::HardState { term: 1, vote: 0, commit: 1 },
        ..restored
    };
    let (mut machine, _) = RaftMachine::new(RaftConfig::new(1, 1), restored).unwrap();
    machine.handle(Event::Applied { index: 1 });
    let acknowledged: Vec<_> = [2, 3].map(|member| AcknowledgedEntry { member, index: 5, term: 1 }).to_vec();
    let mut heartbeat = message(MessageKind::Heartbeat, 2, 1);
    heartbeat.acknowledged.clone_from(&acknowledged);
    assert_eq!(persist(&machine.handle(Event::MessageReceived(heartbeat))), None);
    let mut append = message(MessageKind::Append, 2, 1);
    (append.index, append.log_term, append.entries) = (1, 1, vec![entry(2)]);
    let effects = machine.handle(Event::MessageReceived(append));
    let own = AcknowledgedEntry { member: 1, index: 1, term: 1 };
    let all = [vec![own], acknowledged].concat();
    assert_eq!(persist(&effects).unwrap().acknowledged, Some(all));
}

#[test]
fn regressed_member_does_not_campaign() {
    let restored = || PersistentState {
        hard_state: warren_consensus::HardState { term: 1, vote: 0, commit: 1 },
        entries: vec![entry(1)],
        acknowledged: vec![AcknowledgedEntry { member: 1, index: 2, term: 1 }],
        ..PersistentState::bootstrap([1, 2, 3])
    };
    for accept_data_loss in [false, true] {
        let config = RaftConfig { accept_data_loss, ..RaftConfig::new(1, 1) };
        let (mut machine, effects) = RaftMachine::new(config, restored()).unwrap();
        let missing_entry = Some(LogPosition { term: 1, index: 2 });
        assert!(
            effects
                .contains(&Effect::DurabilityChanged(DurabilityStatus { missing_entry, lost_entry: None })),
            "{effects:?}"
        );
        machine.handle(Event::Applied { index: 1 });
        for (index, votes) in [(1, accept_data_loss), (2, true)] {
            let mut vote = message(MessageKind::Vote, 2, 1 + index);
            (vote.index, vote.log_term) = (index, 1);
            let effects = machine.handle(Event::MessageReceived(vote));
            assert_eq!(persist(&effects).is_some(), votes, "{effects:?}");
            if let Some(DurableWrite { number, .. }) = persist(&effects) {
                machine.handle(Event::Persisted { number: *number });
            }
        }
        let campaigns = (0..60).any(|_| {
            let effects = machine.handle(Event::Tick);
            let is_vote = |message: &warren_consensus::Message| message.kind == MessageKind::PreVote;
            effects.iter().any(|effect| matches!(effect, Effect::Send(all) if all.iter().any(is_vote)))
        });
        assert_eq!(campaigns, accept_data_loss);
    }
}

/// Raft follows a leader that it had contact with until its own ticks expire it.
#[test]
fn regressed_member_votes_after_leader_timeout() {
    let restored = PersistentState {
        hard_state: warren_consensus::HardState { term: 1, vote: 0, commit: 1 },
        entries: vec![entry(1)],
        acknowledged: vec![AcknowledgedEntry { member: 1, index: 2, term: 1 }],
        ..PersistentState::bootstrap([1, 2, 3])
    };
    let (mut machine, _) = RaftMachine::new(RaftConfig::new(1, 1), restored).unwrap();
    machine.handle(Event::Applied { index: 1 });
    machine.handle(Event::MessageReceived(message(MessageKind::Heartbeat, 2, 1)));
    let mut vote = message(MessageKind::PreVote, 3, 2);
    (vote.index, vote.log_term) = (2, 1);
    let grants = |effects: &[Effect]| {
        let is_grant = |it: &warren_consensus::Message| it.kind == MessageKind::PreVoteResponse && !it.reject;
        effects.iter().any(|effect| matches!(effect, Effect::Send(all) if all.iter().any(is_grant)))
    };
    assert!(!grants(&machine.handle(Event::MessageReceived(vote.clone()))), "it has contact with a leader");
    for _ in 0..60 {
        machine.handle(Event::Tick);
    }
    assert!(grants(&machine.handle(Event::MessageReceived(vote))), "its leader is silent");
}

/// A member of a group with `voters` that has one entry, which is applied and committed, and knows these
/// acknowledgements.
fn member_with_one_entry(voters: u64, acknowledged: Vec<AcknowledgedEntry>) -> RaftMachine {
    let restored = PersistentState {
        hard_state: warren_consensus::HardState { term: 1, vote: 0, commit: 1 },
        entries: vec![entry(1)],
        acknowledged,
        ..PersistentState::bootstrap((1..=voters).collect::<Vec<_>>())
    };
    let (mut machine, _) = RaftMachine::new(RaftConfig::new(1, 1), restored).unwrap();
    machine.handle(Event::Applied { index: 1 });
    machine
}

fn sent(effects: &[Effect], kind: MessageKind) -> Vec<&warren_consensus::Message> {
    let sent = effects.iter().filter_map(|effect| match effect {
        Effect::Send(messages) => Some(messages),
        _ => None,
    });
    sent.flatten().filter(|message| message.kind == kind).collect()
}

fn tick_until_candidate(machine: &mut RaftMachine) -> Option<Vec<Effect>> {
    let mut ticks = (0..60).map(|_| machine.handle(Event::Tick));
    ticks.find(|effects| !sent(effects, MessageKind::PreVote).is_empty())
}

/// Of five voters, 2 has regressed and voted before 3, which knows that, sent anything.
#[test]
fn candidate_drops_vote_of_regressed_voter() {
    let tells = [
        (MessageKind::VoteResponse, true),
        (MessageKind::VoteResponse, false),
        (MessageKind::Vote, false),
        (MessageKind::PreVote, false),
    ];
    for reported in [None].into_iter().chain(tells.map(Some)) {
        let mut machine = member_with_one_entry(5, Vec::new());
        tick_until_candidate(&mut machine).expect("it campaigns");
        let mut effects = Vec::new();
        for from in [2, 4] {
            effects.extend(machine.handle(Event::MessageReceived(message(
                MessageKind::PreVoteResponse,
                from,
                2,
            ))));
        }
        let number = persist(&effects).expect("it votes for itself").number;
        machine.handle(Event::Persisted { number });
        machine.handle(Event::MessageReceived(message(MessageKind::VoteResponse, 2, 2)));
        if let Some((kind, reject)) = reported {
            let acknowledged = vec![AcknowledgedEntry { member: 2, index: 2, term: 1 }];
            let message = warren_consensus::Message { reject, acknowledged, ..message(kind, 3, 2) };
            let effects = machine.handle(Event::MessageReceived(message));
            let role = warren_consensus::RaftRole::Follower;
            assert!(
                effects.contains(&Effect::RoleChanged { term: 2, role, leader: None }),
                "{kind:?}: {effects:?}"
            );
        }
        let mut effects = Vec::new();
        for from in [4, 5] {
            effects.extend(machine.handle(Event::MessageReceived(message(
                MessageKind::VoteResponse,
                from,
                2,
            ))));
        }
        let leads = !sent(&effects, MessageKind::Append).is_empty();
        assert_eq!(leads, reported.is_none(), "{reported:?}");
    }
}

#[test]
fn regressed_member_does_not_start_election() {
    for (index, campaigns) in [(1, true), (2, false)] {
        let mut machine = member_with_one_entry(3, vec![AcknowledgedEntry { member: 3, index, term: 1 }]);
        assert_eq!(tick_until_candidate(&mut machine).is_some(), campaigns, "{index}");
    }
}

/// No member may be left that would send it anything to write.
#[test]
fn regression_is_persisted_once() {
    let mut machine = member_with_one_entry(3, Vec::new());
    let reported = AcknowledgedEntry { member: 1, index: 2, term: 1 };
    let mut asks = message(MessageKind::PreVote, 2, 2);
    (asks.index, asks.log_term, asks.acknowledged) = (1, 1, vec![reported]);
    let effects = machine.handle(Event::MessageReceived(asks.clone()));
    let DurableWrite { number, acknowledged, .. } = persist(&effects).expect("it is written").clone();
    assert_eq!(acknowledged, Some(vec![reported]));
    machine.handle(Event::Persisted { number });
    assert_eq!(persist(&machine.handle(Event::MessageReceived(asks))), None);
    // After a restart it knows, and has nothing to write.
    let mut machine = member_with_one_entry(3, vec![reported]);
    assert!(tick_until_candidate(&mut machine).is_none());
    assert_eq!(persist(&machine.handle(Event::Tick)), None);
}

#[test]
fn sent_acknowledgements_are_bounded() {
    let acknowledged = (1..=300).map(|member| AcknowledgedEntry { member, index: 1, term: 1 });
    let mut machine = member_with_one_entry(300, acknowledged.collect());
    let effects = tick_until_candidate(&mut machine).expect("it campaigns");
    for message in sent(&effects, MessageKind::PreVote) {
        assert_eq!(message.acknowledged.len(), 256);
    }
}

/// Ticks until a leader can commit, after the members in `started` of three were down together: mean and
/// longest.
fn ticks_to_elect(started: usize) -> (f64, usize) {
    let mut all = Vec::new();
    for seed in 0..300 {
        let mut network = TestNetwork::new(3, seed);
        let leader = network.elect();
        network.propose(leader);
        network.tick(2);
        for id in network.ids() {
            network.with(id, TestMember::crash);
        }
        network.in_flight.clear();
        // Without the old leader.
        let ids = network.ids().into_iter().filter(|id| started == 3 || *id != leader);
        for id in ids.collect::<Vec<_>>() {
            network.start(id);
        }
        let led = network.oracle.terms_with_leaders();
        let mut ticks = 0;
        while network.oracle.terms_with_leaders() == led {
            ticks += 1;
            assert!(ticks < 200, "no leader, seed {seed}");
            network.tick(1);
        }
        all.push(ticks);
    }
    (all.iter().sum::<usize>() as f64 / all.len() as f64, all.into_iter().max().unwrap())
}

/// No member waits at a start to learn what it acknowledged: that comes with the votes.
#[test]
fn simultaneous_restart_elects_within_timeouts() {
    for started in [3, 2] {
        let (mean, longest) = ticks_to_elect(started);
        println!("{started} of 3 members start: a leader after {mean:.1} ticks, at most {longest}");
        assert!(mean < 12.0 && longest < 60, "{started}: {mean} {longest}");
    }
}
