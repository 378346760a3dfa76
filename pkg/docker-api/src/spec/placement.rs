//! On which nodes tasks may run.

use warren_types::{Constraint, Placement, PlacementPreference};

use super::reader::SpecReader;
use crate::model;

/// Keys of constraints with another name in Docker.
const KEYS: [(&str, &str); 3] =
    [("node.hostname", "node.name"), ("node.platform.os", "node.os"), ("node.platform.arch", "node.arch")];
/// Architectures with another name in Docker, which takes both.
const ARCHITECTURES: [(&str, &str); 2] = [("x86_64", "amd64"), ("aarch64", "arm64")];

/// The rules; tolerations have no form in Docker.
pub fn from_docker(reader: &mut SpecReader, docker: model::Placement) -> Placement {
    let model::Placement { constraints, preferences, max_replicas, platforms } = docker;
    let mut placement = Placement::default();
    let path = |field: &str| format!("TaskTemplate.Placement.{field}");
    for (i, text) in constraints.into_iter().flatten().enumerate() {
        let parsed = reader.parse(path(&format!("Constraints[{i}]")), &warren_constraint(&text));
        placement.constraints.extend(parsed);
    }
    for (i, preference) in preferences.into_iter().flatten().enumerate() {
        let spread = preference.spread.and_then(|spread| spread.spread_descriptor).unwrap_or_default();
        let path = path(&format!("Preferences[{i}].Spread.SpreadDescriptor"));
        placement.preferences.extend(reader.parse::<PlacementPreference>(path, &format!("spread={spread}")));
    }
    placement.max_per_node =
        max_replicas.filter(|most| *most != 0).map(|most| u32::try_from(most).unwrap_or(u32::MAX));
    let is_set = platforms.is_some_and(|platforms| !platforms.is_empty());
    let message =
        "is not supported by this version; give constraints on node.platform.os and node.platform.arch";
    reader.refuse_if(is_set, path("Platforms"), message);
    placement
}

/// Without tolerations.
pub fn to_docker(placement: &Placement) -> model::Placement {
    let Placement { constraints, tolerations: _, max_per_node, preferences } = placement;
    let preference = |preference: &PlacementPreference| {
        let text = preference.to_string();
        let label = text.strip_prefix("spread=").unwrap_or(&text).to_owned();
        model::Preference { spread: Some(model::Spread { spread_descriptor: Some(label) }) }
    };
    let preferences: Vec<model::Preference> = preferences.iter().map(preference).collect();
    let constraints: Vec<String> = constraints.iter().map(docker_constraint).collect();
    model::Placement {
        constraints: (!constraints.is_empty()).then_some(constraints),
        preferences: (!preferences.is_empty()).then_some(preferences),
        max_replicas: max_per_node.map(u64::from),
        platforms: None,
    }
}

fn warren_constraint(text: &str) -> String {
    let text = text.trim();
    for (docker, warren) in KEYS {
        let Some(rest) = text.strip_prefix(docker) else { continue };
        let other = ARCHITECTURES.iter().find(|(theirs, _)| rest.trim_end().ends_with(theirs));
        return match other.filter(|_| warren == "node.arch") {
            Some((theirs, ours)) => format!("{warren}{}", rest.replace(theirs, ours)),
            None => format!("{warren}{rest}"),
        };
    }
    text.to_owned()
}

/// Without blanks, and with Docker's keys.
fn docker_constraint(constraint: &Constraint) -> String {
    let text = constraint.to_string();
    for (docker, warren) in KEYS {
        if let Some(rest) = text.strip_prefix(warren).filter(|rest| rest.starts_with(' ')) {
            return compact(&format!("{docker}{rest}"));
        }
    }
    compact(&text)
}

fn compact(text: &str) -> String {
    text.replacen(" == ", "==", 1).replacen(" != ", "!=", 1)
}
