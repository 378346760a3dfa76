//! A member restarts with data that is older than what it acknowledged, and the leader is lost.

use warren_consensus::{
    Acknowledged, Config, Durability, Effect, Entry, EntryKind, Event, Machine, MessageKind, Persist,
    Position, Restored,
};
use warren_log::Disk;

use crate::{
    member::{Member, Outcome},
    network::Network,
    slow_disk::message,
};

/// Three voters, one of which hears the leader and gets no entries, while five commands are acknowledged. Then the data
/// of the other follower is replaced by what it was before that, and the leader is down.
struct Scene {
    network: Network,
    leader: u64,
    restored: u64,
    behind: u64,
    /// The last entry that all three have, and the last one that was acknowledged.
    common: u64,
    acknowledged: u64,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let mut network = Network::new(3, seed);
        let leader = network.elect();
        let (restored, behind) = (1 + leader % 3, 1 + (leader + 1) % 3);
        network.pass(3);
        let common = last_applied(&network, leader);
        let image = image_of(&mut network, restored);
        for _ in 0..5 {
            network.propose(leader);
            for _ in 0..4 {
                network.with(leader, |member| member.on(Event::Tick));
                settle_without_entries_for(&mut network, behind);
            }
        }
        let acknowledged = last_applied(&network, leader);
        assert_eq!(acknowledged, common + 5);
        assert_eq!(last_applied(&network, behind), common);
        network.with(leader, Member::crash);
        network.flying.clear();
        restore(&mut network, restored, image);
        Self { network, leader, restored, behind, common, acknowledged }
    }

    fn durability(&mut self, id: u64) -> Durability {
        self.network.member(id).durability
    }
}

fn last_applied(network: &Network, id: u64) -> u64 {
    network.members[id as usize - 1].state().last().map_or(0, |(index, ..)| *index)
}

fn image_of(network: &mut Network, id: u64) -> Disk {
    network.member(id).disk.image()
}

fn restore(network: &mut Network, id: u64, image: Disk) {
    network.with(id, Member::crash);
    network.member(id).disk = image;
}

/// Delivers everything but entries for `behind`.
fn settle_without_entries_for(network: &mut Network, behind: u64) {
    loop {
        for id in network.ids() {
            network.with(id, Member::write_all);
        }
        let flying = std::mem::take(&mut network.flying);
        if flying.is_empty() {
            return;
        }
        for flying in flying {
            let (to, kind) = (flying.message.to, flying.message.kind);
            if to == behind && kind == MessageKind::Append {
                network.lose(flying, false);
            } else {
                network.deliver(to, vec![flying]);
            }
        }
    }
}

#[test]
fn restored_follower_elects_no_leader_without_acknowledged_entries() {
    for seed in 0..20 {
        let mut scene = Scene::new(seed);
        let Scene { restored, leader, behind, acknowledged, .. } = scene;
        let led = scene.network.truth.terms_with_leaders();
        scene.network.start(restored);
        scene.network.pass(100);
        assert_eq!(scene.network.truth.terms_with_leaders(), led, "seed {seed}");
        let regressed = scene.durability(restored).regressed.expect("it was told");
        assert_eq!(regressed.index, acknowledged, "seed {seed}");
        assert_eq!(scene.durability(behind), Durability::default());
        // The one that has everything is back.
        scene.network.start(leader);
        assert_eq!(scene.network.elect(), leader, "seed {seed}");
        scene.network.pass(10);
        assert_eq!(scene.durability(restored), Durability::default(), "seed {seed}");
        scene.network.truth.check_answers();
        // By now its vote counts again.
        scene.network.with(leader, Member::crash);
        scene.network.elect();
        scene.network.truth.check_answers();
    }
}

#[test]
fn restored_follower_is_brought_up_to_date_by_the_leader_of_the_same_term() {
    for seed in 0..20 {
        let mut network = Network::new(3, seed);
        let leader = network.elect();
        let restored = 1 + leader % 3;
        let image = image_of(&mut network, restored);
        for _ in 0..5 {
            network.propose(leader);
            network.settle();
        }
        restore(&mut network, restored, image);
        let led = network.truth.terms_with_leaders();
        network.start(restored);
        network.pass(10);
        assert_eq!(network.truth.terms_with_leaders(), led, "the leader stays, seed {seed}");
        assert_eq!(last_applied(&network, restored), last_applied(&network, leader), "seed {seed}");
        assert_eq!(network.member(restored).durability, Durability::default());
    }
}

#[test]
fn restored_follower_votes_for_a_member_that_has_everything() {
    for seed in 0..20 {
        let mut network = Network::new(3, seed);
        let leader = network.elect();
        let restored = 1 + leader % 3;
        let image = image_of(&mut network, restored);
        for _ in 0..5 {
            network.propose(leader);
            network.pass(3);
        }
        network.with(leader, Member::crash);
        network.flying.clear();
        restore(&mut network, restored, image);
        network.start(restored);
        assert_eq!(network.elect(), 1 + (leader + 1) % 3, "seed {seed}");
        network.pass(10);
        assert_eq!(network.member(restored).durability, Durability::default(), "seed {seed}");
        network.truth.check_answers();
    }
}

#[test]
fn loss_that_people_accept_is_told_by_every_member() {
    for seed in 0..20 {
        let mut scene = Scene::new(seed);
        let Scene { restored, behind, common, acknowledged, .. } = scene;
        scene.network.truth.give_up_after(common);
        scene.network.member(restored).accept_data_loss = true;
        scene.network.start(restored);
        let elected = scene.network.elect();
        assert!([restored, behind].contains(&elected), "seed {seed}");
        scene.network.pass(3);
        for id in [restored, behind] {
            let durability = Durability { regressed: None, lost: Some(acknowledged) };
            assert_eq!(scene.durability(id), durability, "member {id}, seed {seed}");
        }
    }
}

/// Nobody but the old leader knew, so nobody could prevent it.
#[test]
fn returning_leader_tells_survivors_what_was_lost() {
    let mut scene = Scene::new(3);
    let Scene { restored, behind, leader, common, acknowledged, .. } = scene;
    scene.network.truth.give_up_after(common);
    // Whoever was down heard nothing.
    let image = Scene::new(3).network.member(restored).disk.image();
    restore(&mut scene.network, behind, image);
    for id in [restored, behind] {
        scene.network.start(id);
    }
    scene.network.elect();
    scene.network.pass(3);
    for id in [restored, behind] {
        assert_eq!(scene.durability(id), Durability::default());
    }
    let returning = scene.network.member(leader);
    returning.start(9);
    let mut fatal = None;
    for _ in 0..20 {
        for message in std::mem::take(&mut scene.network.member(leader).outbox) {
            let to = message.to;
            scene.network.with(to, |member| member.on(Event::Message(message)));
        }
        scene.network.member(leader).write_all();
        for id in [restored, behind] {
            scene.network.with(id, |member| member.on(Event::Tick));
            scene.network.with(id, Member::write_all);
        }
        for flying in std::mem::take(&mut scene.network.flying) {
            let to = flying.message.to;
            match to == leader {
                true => scene.network.member(to).on(Event::Message(flying.message)),
                false => scene.network.deliver(to, vec![flying]),
            }
        }
        let outcomes = scene.network.member(leader).take_outcomes();
        fatal = fatal.or(outcomes.into_iter().find(|outcome| matches!(outcome, Outcome::Fatal(_))));
    }
    assert!(fatal.is_some(), "it has what the group replaced");
    for id in [restored, behind] {
        // Its last commit index was not written any more.
        let lost = scene.durability(id).lost;
        assert!(lost.is_some_and(|lost| (acknowledged - 1..=acknowledged).contains(&lost)), "{id}: {lost:?}");
    }
}

fn entry(index: u64) -> Entry {
    Entry { index, term: 1, kind: EntryKind::Command, data: b"x".as_slice().into() }
}

fn persist(effects: &[Effect]) -> Option<&Persist> {
    effects.iter().find_map(|effect| match effect {
        Effect::Persist(persist) => Some(persist),
        _ => None,
    })
}

/// An idle group writes nothing, so what is learned waits for the next entry.
#[test]
fn acknowledged_entries_are_stored_with_the_next_write() {
    let restored = Restored { entries: vec![entry(1)], ..Restored::founding([1, 2, 3]) };
    let restored =
        Restored { hard_state: warren_consensus::HardState { term: 1, vote: 0, commit: 1 }, ..restored };
    let (mut machine, _) = Machine::new(Config::new(1, 1), restored).unwrap();
    machine.on(Event::Applied { index: 1 });
    let acknowledged: Vec<_> = [2, 3].map(|member| Acknowledged { member, index: 5, term: 1 }).to_vec();
    let mut heartbeat = message(MessageKind::Heartbeat, 2, 1);
    heartbeat.acknowledged.clone_from(&acknowledged);
    assert_eq!(persist(&machine.on(Event::Message(heartbeat))), None);
    let mut append = message(MessageKind::Append, 2, 1);
    (append.index, append.log_term, append.entries) = (1, 1, vec![entry(2)]);
    let effects = machine.on(Event::Message(append));
    let own = Acknowledged { member: 1, index: 1, term: 1 };
    let all = [vec![own], acknowledged].concat();
    assert_eq!(persist(&effects).unwrap().acknowledged, Some(all));
}

#[test]
fn member_that_acknowledged_more_votes_only_for_who_has_that_and_does_not_campaign() {
    let restored = || Restored {
        hard_state: warren_consensus::HardState { term: 1, vote: 0, commit: 1 },
        entries: vec![entry(1)],
        acknowledged: vec![Acknowledged { member: 1, index: 2, term: 1 }],
        ..Restored::founding([1, 2, 3])
    };
    for accept_data_loss in [false, true] {
        let config = Config { accept_data_loss, ..Config::new(1, 1) };
        let (mut machine, effects) = Machine::new(config, restored()).unwrap();
        let regressed = Some(Position { term: 1, index: 2 });
        assert!(effects.contains(&Effect::Durability(Durability { regressed, lost: None })), "{effects:?}");
        machine.on(Event::Applied { index: 1 });
        for (index, votes) in [(1, accept_data_loss), (2, true)] {
            let mut vote = message(MessageKind::Vote, 2, 1 + index);
            (vote.index, vote.log_term) = (index, 1);
            let effects = machine.on(Event::Message(vote));
            assert_eq!(persist(&effects).is_some(), votes, "{effects:?}");
            if let Some(Persist { number, .. }) = persist(&effects) {
                machine.on(Event::Persisted { number: *number });
            }
        }
        let campaigns = (0..60).any(|_| {
            let effects = machine.on(Event::Tick);
            let is_vote = |message: &warren_consensus::Message| message.kind == MessageKind::PreVote;
            effects.iter().any(|effect| matches!(effect, Effect::Send(all) if all.iter().any(is_vote)))
        });
        assert_eq!(campaigns, accept_data_loss);
    }
}

/// Raft counts on a leader that it heard until its own ticks say that it is silent.
#[test]
fn member_that_lacks_entries_votes_after_its_leader_fell_silent() {
    let restored = Restored {
        hard_state: warren_consensus::HardState { term: 1, vote: 0, commit: 1 },
        entries: vec![entry(1)],
        acknowledged: vec![Acknowledged { member: 1, index: 2, term: 1 }],
        ..Restored::founding([1, 2, 3])
    };
    let (mut machine, _) = Machine::new(Config::new(1, 1), restored).unwrap();
    machine.on(Event::Applied { index: 1 });
    machine.on(Event::Message(message(MessageKind::Heartbeat, 2, 1)));
    let mut vote = message(MessageKind::PreVote, 3, 2);
    (vote.index, vote.log_term) = (2, 1);
    let grants = |effects: &[Effect]| {
        let is_grant = |it: &warren_consensus::Message| it.kind == MessageKind::PreVoteResponse && !it.reject;
        effects.iter().any(|effect| matches!(effect, Effect::Send(all) if all.iter().any(is_grant)))
    };
    assert!(!grants(&machine.on(Event::Message(vote.clone()))), "it hears a leader");
    for _ in 0..60 {
        machine.on(Event::Tick);
    }
    assert!(grants(&machine.on(Event::Message(vote))), "its leader is silent");
}

/// A member of a group with `voters` that has one entry, which is applied and committed, and knows so much of others.
fn member_with_one_entry(voters: u64, acknowledged: Vec<Acknowledged>) -> Machine {
    let restored = Restored {
        hard_state: warren_consensus::HardState { term: 1, vote: 0, commit: 1 },
        entries: vec![entry(1)],
        acknowledged,
        ..Restored::founding((1..=voters).collect::<Vec<_>>())
    };
    let (mut machine, _) = Machine::new(Config::new(1, 1), restored).unwrap();
    machine.on(Event::Applied { index: 1 });
    machine
}

fn sent(effects: &[Effect], kind: MessageKind) -> Vec<&warren_consensus::Message> {
    let sent = effects.iter().filter_map(|effect| match effect {
        Effect::Send(messages) => Some(messages),
        _ => None,
    });
    sent.flatten().filter(|message| message.kind == kind).collect()
}

fn tick_until_it_asks(machine: &mut Machine) -> Option<Vec<Effect>> {
    let mut ticks = (0..60).map(|_| machine.on(Event::Tick));
    ticks.find(|effects| !sent(effects, MessageKind::PreVote).is_empty())
}

/// Of five voters 2 has gone back and voted before 3, which knows that, said anything.
#[test]
fn candidate_that_learns_that_a_counted_voter_acknowledged_more_is_not_elected() {
    let tells = [
        (MessageKind::VoteResponse, true),
        (MessageKind::VoteResponse, false),
        (MessageKind::Vote, false),
        (MessageKind::PreVote, false),
    ];
    for told in [None].into_iter().chain(tells.map(Some)) {
        let mut machine = member_with_one_entry(5, Vec::new());
        tick_until_it_asks(&mut machine).expect("it campaigns");
        let mut effects = Vec::new();
        for from in [2, 4] {
            effects.extend(machine.on(Event::Message(message(MessageKind::PreVoteResponse, from, 2))));
        }
        let number = persist(&effects).expect("it votes for itself").number;
        machine.on(Event::Persisted { number });
        machine.on(Event::Message(message(MessageKind::VoteResponse, 2, 2)));
        if let Some((kind, reject)) = told {
            let acknowledged = vec![Acknowledged { member: 2, index: 2, term: 1 }];
            let message = warren_consensus::Message { reject, acknowledged, ..message(kind, 3, 2) };
            let effects = machine.on(Event::Message(message));
            let role = warren_consensus::Role::Follower;
            assert!(effects.contains(&Effect::Role { term: 2, role, leader: None }), "{kind:?}: {effects:?}");
        }
        let mut effects = Vec::new();
        for from in [4, 5] {
            effects.extend(machine.on(Event::Message(message(MessageKind::VoteResponse, from, 2))));
        }
        let leads = !sent(&effects, MessageKind::Append).is_empty();
        assert_eq!(leads, told.is_none(), "{told:?}");
    }
}

#[test]
fn member_that_knows_of_an_acknowledged_entry_that_it_lacks_does_not_campaign() {
    for (index, campaigns) in [(1, true), (2, false)] {
        let mut machine = member_with_one_entry(3, vec![Acknowledged { member: 3, index, term: 1 }]);
        assert_eq!(tick_until_it_asks(&mut machine).is_some(), campaigns, "{index}");
    }
}

/// Nobody may be left who would send it anything to write.
#[test]
fn member_that_learns_that_it_went_back_writes_that_once() {
    let mut machine = member_with_one_entry(3, Vec::new());
    let told = Acknowledged { member: 1, index: 2, term: 1 };
    let mut asks = message(MessageKind::PreVote, 2, 2);
    (asks.index, asks.log_term, asks.acknowledged) = (1, 1, vec![told]);
    let effects = machine.on(Event::Message(asks.clone()));
    let Persist { number, acknowledged, .. } = persist(&effects).expect("it is written").clone();
    assert_eq!(acknowledged, Some(vec![told]));
    machine.on(Event::Persisted { number });
    assert_eq!(persist(&machine.on(Event::Message(asks))), None);
    // After a restart it knows, and has nothing to write.
    let mut machine = member_with_one_entry(3, vec![told]);
    assert!(tick_until_it_asks(&mut machine).is_none());
    assert_eq!(persist(&machine.on(Event::Tick)), None);
}

#[test]
fn no_more_is_told_than_others_take() {
    let acknowledged = (1..=300).map(|member| Acknowledged { member, index: 1, term: 1 });
    let mut machine = member_with_one_entry(300, acknowledged.collect());
    let effects = tick_until_it_asks(&mut machine).expect("it campaigns");
    for message in sent(&effects, MessageKind::PreVote) {
        assert_eq!(message.acknowledged.len(), 256);
    }
}

/// Ticks until a leader can commit, after the members in `started` of three were down together: mean and longest.
fn ticks_to_elect(started: usize) -> (f64, usize) {
    let mut all = Vec::new();
    for seed in 0..300 {
        let mut network = Network::new(3, seed);
        let leader = network.elect();
        network.propose(leader);
        network.pass(2);
        for id in network.ids() {
            network.with(id, Member::crash);
        }
        network.flying.clear();
        // Without the one that led.
        let ids = network.ids().into_iter().filter(|id| started == 3 || *id != leader);
        for id in ids.collect::<Vec<_>>() {
            network.start(id);
        }
        let led = network.truth.terms_with_leaders();
        let mut ticks = 0;
        while network.truth.terms_with_leaders() == led {
            ticks += 1;
            assert!(ticks < 200, "no leader, seed {seed}");
            network.pass(1);
        }
        all.push(ticks);
    }
    (all.iter().sum::<usize>() as f64 / all.len() as f64, all.into_iter().max().unwrap())
}

/// Nobody waits at a start to hear what it acknowledged: that comes with the votes.
#[test]
fn members_that_restart_together_elect_as_fast_as_their_timeouts_allow() {
    for started in [3, 2] {
        let (mean, longest) = ticks_to_elect(started);
        println!("{started} of 3 members start: a leader after {mean:.1} ticks, at most {longest}");
        assert!(mean < 12.0 && longest < 60, "{started}: {mean} {longest}");
    }
}
