//! Which answers to a read count.

use warren_consensus::{Config, Effect, Event, Machine, Message, MessageKind, Restored};

/// A follower of member 2, in its run `seed`.
fn follower(id: u64, seed: u64) -> Machine {
    let (mut machine, _) = Machine::new(Config::new(id, seed), Restored::founding([1, 2, 3])).unwrap();
    let heartbeat = Message { to: id, ..crate::slow_disk::message(MessageKind::Heartbeat, 2, 1) };
    machine.on(Event::Message(heartbeat));
    machine.on(Event::Persisted { number: 1 });
    machine
}

/// What it asks the leader, turned into the leader's answer.
fn answer(machine: &mut Machine, ctx: u64) -> Message {
    let effects = machine.on(Event::ReadIndex { ctx });
    let [Effect::Send(messages)] = effects.as_slice() else { panic!("{effects:?}") };
    let asked = messages[0].clone();
    assert_eq!((asked.kind, asked.to), (MessageKind::ReadIndex, 2));
    let (to, from) = (asked.from, asked.to);
    Message { kind: MessageKind::ReadIndexResponse, to, from, term: 1, index: 5, ..asked }
}

#[test]
fn only_answers_to_this_run_count() {
    let mut machine = follower(1, 1);
    let good = answer(&mut machine, 7);
    let ready = Effect::ReadReady { ctx: 7, index: 5 };
    assert_eq!(machine.on(Event::Message(good.clone())), [ready]);
    let mut next_run = follower(1, 2);
    assert_eq!(next_run.on(Event::Message(good.clone())), [], "an earlier run asked");
    let mut other = follower(3, 1);
    assert_eq!(other.on(Event::Message(Message { to: 3, ..good })), [], "another member asked");
}

#[test]
fn an_answer_without_its_context_means_nothing() {
    let mut machine = follower(1, 1);
    let bare = Message { entries: Vec::new(), ..answer(&mut machine, 7) };
    assert_eq!(machine.on(Event::Message(bare.clone())), []);
    let asked = Message { kind: MessageKind::ReadIndex, ..bare };
    assert_eq!(machine.on(Event::Message(asked)), []);
}
