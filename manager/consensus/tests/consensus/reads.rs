//! Which responses to a read are accepted.

use warren_consensus::{Effect, Event, Message, MessageKind, PersistentState, RaftConfig, RaftMachine};

/// A follower of member 2, in its run `seed`.
fn follower(id: u64, seed: u64) -> RaftMachine {
    let (mut machine, _) =
        RaftMachine::new(RaftConfig::new(id, seed), PersistentState::bootstrap([1, 2, 3])).unwrap();
    let heartbeat = Message { to: id, ..crate::slow_disk::message(MessageKind::Heartbeat, 2, 1) };
    machine.handle(Event::MessageReceived(heartbeat));
    machine.handle(Event::Persisted { number: 1 });
    machine
}

/// Its read request to the leader, turned into the leader's response.
fn answer(machine: &mut RaftMachine, ctx: u64) -> Message {
    let effects = machine.handle(Event::ReadIndex { ctx });
    let [Effect::Send(messages)] = effects.as_slice() else { panic!("{effects:?}") };
    let asked = messages[0].clone();
    assert_eq!((asked.kind, asked.to), (MessageKind::ReadIndex, 2));
    let (to, from) = (asked.from, asked.to);
    Message { kind: MessageKind::ReadIndexResponse, to, from, term: 1, index: 5, ..asked }
}

#[test]
fn read_response_of_earlier_run_is_ignored() {
    let mut machine = follower(1, 1);
    let good = answer(&mut machine, 7);
    let ready = Effect::ReadReady { ctx: 7, index: 5 };
    assert_eq!(machine.handle(Event::MessageReceived(good.clone())), [ready]);
    let mut next_run = follower(1, 2);
    assert_eq!(next_run.handle(Event::MessageReceived(good.clone())), [], "an earlier run asked");
    let mut other = follower(3, 1);
    assert_eq!(other.handle(Event::MessageReceived(Message { to: 3, ..good })), [], "another member asked");
}

#[test]
fn read_response_without_context_is_ignored() {
    let mut machine = follower(1, 1);
    let bare = Message { entries: Vec::new(), ..answer(&mut machine, 7) };
    assert_eq!(machine.handle(Event::MessageReceived(bare.clone())), []);
    let asked = Message { kind: MessageKind::ReadIndex, ..bare };
    assert_eq!(machine.handle(Event::MessageReceived(asked)), []);
}
