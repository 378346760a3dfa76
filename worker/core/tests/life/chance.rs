//! What happens, drawn by chance.

use proptest::prelude::*;
use warren_types::spec::RestartCondition;
use warren_types::{Desired, Health};

use crate::{Event, Fate};

pub fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        10 => Just(Fate::Succeeds),
        1 => Just(Fate::FailsBefore),
        1 => Just(Fate::FailsAfter),
        1 => Just(Fate::CrashesBefore),
        1 => Just(Fate::CrashesAfter),
    ]
}

pub fn health() -> impl Strategy<Value = Health> {
    prop::sample::select(vec![Health::Starting, Health::Healthy, Health::Unhealthy])
}

/// What checks say of a process of which one has succeeded.
pub fn lasting_health() -> impl Strategy<Value = Health> {
    prop::sample::select(vec![Health::Healthy, Health::Unhealthy])
}

pub fn condition() -> impl Strategy<Value = RestartCondition> {
    prop::sample::select(RestartCondition::ALL.to_vec())
}

pub fn event(refusals: u32) -> impl Strategy<Value = Event> {
    let desired = prop_oneof![
        8 => Just(Desired::Running),
        1 => Just(Desired::Shutdown),
        1 => Just(Desired::Remove),
    ];
    let rare =
        vec![Event::LosesProcess, Event::Stumbles, Event::LosesImage, Event::LosesContents, Event::Moves];
    let rare = prop::sample::select(rare);
    prop_oneof![
        30 => fate().prop_map(Event::Acts),
        refusals => Just(Event::Acts(Fate::Refused)),
        3 => (0..3i32).prop_map(Event::Exits),
        2 => desired.prop_map(Event::Desires),
        4 => (0..400u64).prop_map(Event::Passes),
        5 => rare,
        4 => health().prop_map(Event::Checks),
        2 => any::<bool>().prop_map(Event::Settles),
        3 => any::<bool>().prop_map(Event::Finds),
    ]
}
