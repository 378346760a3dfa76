//! Random events.

use proptest::prelude::*;
use warren_task::ActionKind;
use warren_types::spec::RestartCondition;
use warren_types::{DesiredTaskState, Health};

use crate::{Event, InjectedOutcome};

pub fn injected_outcome() -> impl Strategy<Value = InjectedOutcome> {
    prop_oneof![
        10 => Just(InjectedOutcome::Succeeds),
        1 => Just(InjectedOutcome::FailsBefore),
        1 => Just(InjectedOutcome::FailsAfter),
        1 => Just(InjectedOutcome::CrashesBefore),
        1 => Just(InjectedOutcome::CrashesAfter),
    ]
}

pub fn health() -> impl Strategy<Value = Health> {
    prop::sample::select(vec![Health::Starting, Health::Healthy, Health::Unhealthy])
}

/// Health of a process of which one check has succeeded.
pub fn lasting_health() -> impl Strategy<Value = Health> {
    prop::sample::select(vec![Health::Healthy, Health::Unhealthy])
}

pub fn condition() -> impl Strategy<Value = RestartCondition> {
    prop::sample::select(RestartCondition::ALL.to_vec())
}

/// The only kind of action that fails; `None` for all.
pub fn failing_kind() -> impl Strategy<Value = Option<ActionKind>> {
    let kinds = vec![
        ActionKind::Inspect,
        ActionKind::EnsureImage,
        ActionKind::EnsureVolumes,
        ActionKind::EnsureSecretObjects,
        ActionKind::RouteTraffic,
        ActionKind::EnsureContainer,
        ActionKind::Start,
        ActionKind::RecordHistory,
        ActionKind::SignalStop,
        ActionKind::DeleteProcess,
        ActionKind::RemoveLayer,
        ActionKind::RemoveContainer,
        ActionKind::ReleasePorts,
    ];
    prop::option::of(prop::sample::select(kinds))
}

pub fn event(refusals: u32) -> impl Strategy<Value = Event> {
    let desired = prop_oneof![
        8 => Just(DesiredTaskState::Running),
        1 => Just(DesiredTaskState::Shutdown),
        1 => Just(DesiredTaskState::Remove),
    ];
    let rare = vec![
        Event::LosesProcess,
        Event::Interrupted,
        Event::LosesImage,
        Event::LosesSecretObjects,
        Event::Moves,
        Event::Overflows,
    ];
    let rare = prop::sample::select(rare);
    prop_oneof![
        30 => injected_outcome().prop_map(Event::Acts),
        refusals => Just(Event::Acts(InjectedOutcome::Refused)),
        3 => (0..3i32).prop_map(Event::Exits),
        2 => desired.prop_map(Event::Desires),
        4 => (0..400u64).prop_map(Event::Passes),
        5 => rare,
        4 => health().prop_map(Event::Checks),
        2 => any::<bool>().prop_map(Event::Settles),
        3 => any::<bool>().prop_map(Event::Finds),
    ]
}
