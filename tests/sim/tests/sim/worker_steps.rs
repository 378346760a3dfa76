//! The steps of workers, as managers read them in reasons.

use warren_core::why::WORKER_STEPS;
use warren_task::ActionKind;

#[test]
fn every_step_with_a_cause_is_an_action_of_workers() {
    use ActionKind::{
        EnsureContainer, EnsureFiles, EnsureImage, EnsureNetwork, EnsureSecretObjects, EnsureVolumes,
        Inspect, Kill, ReservePorts, RouteTraffic, Start,
    };
    let preparing = [EnsureImage, EnsureNetwork, EnsureFiles, EnsureVolumes, EnsureSecretObjects];
    let running = [ReservePorts, RouteTraffic, EnsureContainer, Start, Inspect, Kill];
    let mut verbs: Vec<String> = preparing.iter().chain(&running).map(ToString::to_string).collect();
    let mut known: Vec<String> = WORKER_STEPS.iter().map(|step| step.verb.to_owned()).collect();
    verbs.sort_unstable();
    known.sort_unstable();
    assert_eq!(known, verbs);
}
