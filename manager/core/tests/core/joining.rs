//! Join tokens.

use std::time::Duration;

use warren_core::state::MAX_TOKENS;
use warren_core::{Answer, Command, Outcome, reap_tokens};
use warren_types::*;

use crate::world::*;

const HOUR: Duration = Duration::from_secs(3600);

fn token_id(number: u128) -> TokenId {
    TokenId(Id(number))
}

fn secret(number: u16) -> TokenHash {
    let mut hash = [0; 32];
    hash[..2].copy_from_slice(&number.to_be_bytes());
    TokenHash(hash)
}

fn create(world: &World, number: u16, expires_in: Option<Duration>, max_uses: Option<u32>) -> Command {
    Command::CreateToken {
        id: token_id(number.into()),
        role: NodeRole::Worker,
        hash: secret(number),
        expires_at: expires_in.map(|time| world.now + time),
        max_uses,
        at: world.now,
    }
}

fn join(world: &World, token: u16, node: u128) -> Command {
    let (name, description) = (format!("node-{node}").parse().unwrap(), description(resources(1000, 512)));
    Command::JoinNode { hash: secret(token), id: node_id(node), name, description, at: world.now }
}

fn uses(world: &World, number: u128) -> u32 {
    world.state.token(&token_id(number)).unwrap().uses
}

#[test]
fn a_token_is_used_once_per_machine() {
    let mut world = World::new();
    world.accept(create(&world, 1, None, Some(2)));
    let answer = world.accept(join(&world, 1, 1));
    assert!(matches!(answer, Answer::Node { .. }));
    assert_eq!(
        world.run(&join(&world, 1, 1)),
        Outcome::Unchanged { answer },
        "it may not know that it joined"
    );
    assert_eq!((uses(&world, 1), world.state.node(&node_id(1)).unwrap().role), (1, NodeRole::Worker));
    world.accept(join(&world, 1, 2));
    let refusal = world.refuse(join(&world, 1, 3));
    assert!(refusal.starts_with("the token has been used 2 times, as often as it may"), "{refusal}");
    world.accept(join(&world, 1, 2));
    assert_eq!(uses(&world, 1), 2);
}

#[test]
fn a_join_that_is_refused_uses_nothing() {
    let mut world = World::with_nodes(1);
    world.accept(create(&world, 1, None, None));
    let same_name = Command::JoinNode {
        hash: secret(1),
        id: node_id(9),
        name: "node-1".parse().unwrap(),
        description: description(resources(1000, 512)),
        at: world.now,
    };
    assert!(world.refuse(same_name).starts_with("node node-1 already exists"));
    assert!(world.refuse(join(&world, 2, 3)).starts_with("the token is not known"));
    assert_eq!(uses(&world, 1), 0);
}

#[test]
fn tokens_expire_and_are_forgotten_a_day_later() {
    let mut world = World::new();
    world.accept(create(&world, 1, Some(HOUR), None));
    world.accept(create(&world, 2, None, None));
    world.wait(HOUR);
    assert!(world.refuse(join(&world, 1, 1)).starts_with("the token expired"));
    let plan = world.carry_out(reap_tokens);
    assert_eq!((plan.commands.len(), plan.recheck_after), (0, Some(24 * HOUR)));
    // A plan of a clock that is ahead deletes nothing that is not over.
    let early = Command::DeleteTokens { term: TERM, tokens: vec![token_id(1), token_id(2)], at: world.now };
    assert!(matches!(world.run(&early), Outcome::Unchanged { .. }));
    world.wait(24 * HOUR);
    let plan = world.carry_out(reap_tokens);
    assert_eq!((plan.commands.len(), plan.recheck_after), (1, None));
    assert_eq!(world.state.tokens().map(|token| token.id).collect::<Vec<_>>(), [token_id(2)]);
    assert!(world.refuse(join(&world, 1, 1)).starts_with("the token is not known"));
}

#[test]
fn creating_can_be_repeated_and_removing_too() {
    let mut world = World::new();
    let token = create(&world, 1, Some(HOUR), Some(3));
    let answer = world.accept(token.clone());
    assert!(matches!(answer, Answer::Token { .. }));
    assert_eq!(world.run(&token), Outcome::Unchanged { answer: answer.clone() });
    world.wait(Duration::from_secs(5));
    let later = create(&world, 1, Some(HOUR), Some(3));
    assert_eq!(world.run(&later), Outcome::Unchanged { answer }, "its end counts from another moment");
    assert!(world.refuse(create(&world, 1, Some(2 * HOUR), Some(3))).contains("already exists"));
    assert!(world.refuse(create(&world, 1, None, None)).contains("already exists"));
    let Command::CreateToken { role, hash, expires_at, max_uses, at, .. } = token else { panic!() };
    let stolen = Command::CreateToken { id: token_id(2), role, hash, expires_at, max_uses, at };
    assert!(world.refuse(stolen).contains("already exists"), "a secret is of one token");
    let wrong = create(&world, 3, None, Some(0));
    assert!(world.refuse(wrong).starts_with("maxUses: 0 lets no machine join"));
    let wrong = create(&world, 3, Some(Duration::ZERO), None);
    assert!(world.refuse(wrong).starts_with("expiresAt: lies in the past"));
    let remove = Command::RemoveToken { id: token_id(1), at: world.now };
    world.accept(remove.clone());
    assert_eq!(world.run(&remove), Outcome::Unchanged { answer: Answer::Done });
    assert!(world.refuse(join(&world, 1, 1)).starts_with("the token is not known"));
}

#[test]
fn there_are_at_most_so_many() {
    let mut world = World::new();
    for number in 1..=u16::try_from(MAX_TOKENS).unwrap() {
        let command = create(&world, number, None, None);
        let index = world.state.applied().index + 1;
        assert!(matches!(world.state.apply(TERM, index, &command), Outcome::Applied { .. }));
    }
    let refusal = world.refuse(create(&world, 5000, None, None));
    assert!(refusal.starts_with("there are 1000 tokens already"), "{refusal}");
    world.accept(Command::RemoveToken { id: token_id(7), at: world.now });
    world.accept(create(&world, 5000, None, None));
}

#[test]
fn tokens_are_found_by_id_and_survive_a_snapshot() {
    let mut world = World::new();
    world.accept(create(&world, 1, None, None));
    world.accept(create(&world, 2, Some(HOUR), Some(1)));
    assert_eq!(warren_core::State::restore(world.state.export()).unwrap(), world.state);
    assert_eq!(world.state.find_token(&token_id(2).to_string()).unwrap().id, token_id(2));
    assert!(world.state.find_token("zz").unwrap_err().to_string().contains("token \"zz\" does not exist"));
    assert!(world.state.find_token("0").unwrap_err().to_string().contains("begins more than one token id"));
    assert_eq!(world.state.token_of(&secret(2)).unwrap().id, token_id(2));
    assert_eq!(world.state.tokens_after(Some(token_id(1))).count(), 1);
}
