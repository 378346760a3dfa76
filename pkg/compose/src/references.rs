//! Checks that what services refer to exists, and that no services wait for each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::problem::{ComposeProblem, MAX_SUGGESTIONS, SourcePosition, similar};
use crate::project::{Project, dependencies};
use crate::yaml::{ScalarType, YamlEntry, YamlNode, YamlValue};

/// Checks all references. A dependency that is not required and not there is removed.
pub fn check_references(
    project: &mut Project,
    disabled: &BTreeMap<String, Vec<String>>,
    problems: &mut Vec<ComposeProblem>,
) {
    complete_dependencies(project);
    for (name, entry) in project.section("services") {
        let service = &entry.node;
        for (other, node) in dependencies(service) {
            if project.entry("services", other).is_some() {
                continue;
            }
            let path = format!("services.{name}.depends_on.{other}");
            let message = match disabled.get(other) {
                Some(profiles) => format!(
                    "the service {other:?} is in the profiles {}, none of which is active; activate one with --profile",
                    profiles.join(", ")
                ),
                None => missing("service", other, project, "services", problems.len()),
            };
            problems.push(ComposeProblem::new(&node.at, path, message));
        }
        check_resources(project, name, service, problems);
    }
    if problems.is_empty() {
        problems.extend(creation_order(project).err());
    }
}

/// Gives each dependency its condition, and removes those that are optional and not there.
fn complete_dependencies(project: &mut Project) {
    let names: BTreeSet<String> = project.section("services").map(|(name, _)| name.to_owned()).collect();
    let YamlValue::Map(root) = &mut project.root.value else { return };
    let Some(YamlValue::Map(services)) = root.get_mut("services").map(|entry| &mut entry.node.value) else {
        return;
    };
    for entry in services.values_mut() {
        let YamlValue::Map(service) = &mut entry.node.value else { continue };
        let Some(depends) = service.get_mut("depends_on") else { continue };
        let YamlValue::Map(depends) = &mut depends.node.value else { continue };
        depends.retain(|name, entry| {
            let is_optional = entry.node.get("required").and_then(YamlNode::as_text) == Some("false");
            names.contains(&**name) || !is_optional
        });
        for entry in depends.values_mut() {
            let at = entry.node.at.clone();
            let YamlValue::Map(dependency) = &mut entry.node.value else { continue };
            for (key, text, kind) in
                [("condition", "service_started", ScalarType::Text), ("required", "true", ScalarType::Bool)]
            {
                let default = || YamlEntry { key_at: at.clone(), node: YamlNode::scalar(text, kind, &at) };
                dependency.entry(key.into()).or_insert_with(default);
            }
        }
    }
}

fn missing(what: &str, name: &str, project: &Project, section: &str, earlier: usize) -> String {
    let known = project.section(section).map(|(known, _)| known).filter(|_| earlier < MAX_SUGGESTIONS);
    let hint = match similar(name, known) {
        Some(known) => format!("did you mean {known:?}?"),
        None => format!("define it in the top-level `{section}`"),
    };
    format!("there is no {what} {name:?}; {hint}")
}

/// Networks, volumes, secrets and configs of a service.
fn check_resources(project: &Project, name: &str, service: &YamlNode, problems: &mut Vec<ComposeProblem>) {
    let mut check = |section: &str, what: &str, used: &str, at: &SourcePosition| {
        if project.entry(section, used).is_none() {
            let path = format!("services.{name}.{section}");
            let message = missing(what, used, project, section, problems.len());
            problems.push(ComposeProblem::new(at, path, message));
        }
    };
    for (network, entry) in service.get("networks").and_then(YamlNode::as_map).into_iter().flatten() {
        if &**network != "default" {
            check("networks", "network", network, &entry.key_at);
        }
    }
    for mount in service.get("volumes").map(YamlNode::items).unwrap_or_default() {
        let text = |key: &str| mount.get(key).and_then(YamlNode::as_text);
        if let (Some("volume"), Some(source)) = (text("type"), text("source")) {
            check("volumes", "volume", source, &mount.at);
        }
    }
    for (section, what) in [("secrets", "secret"), ("configs", "config")] {
        for mount in service.get(section).map(YamlNode::items).unwrap_or_default() {
            if let Some(source) = mount.get("source").and_then(YamlNode::as_text) {
                check(section, what, source, &mount.at);
            }
        }
    }
}

/// The names of all services, each after those that it depends on.
///
/// # Errors
/// A circle of services.
pub fn creation_order(project: &Project) -> Result<Vec<&str>, ComposeProblem> {
    let mut waiting: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut dependents: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, entry) in project.section("services") {
        let needed: BTreeSet<&str> = dependencies(&entry.node).map(|(other, _)| other).collect();
        for other in &needed {
            dependents.entry(other).or_default().push(name);
        }
        waiting.insert(name, needed);
    }
    let mut free: BTreeSet<&str> =
        waiting.iter().filter(|(_, needed)| needed.is_empty()).map(|(name, _)| *name).collect();
    let mut order = Vec::with_capacity(waiting.len());
    while let Some(name) = free.pop_first() {
        waiting.remove(name);
        order.push(name);
        for dependent in dependents.get(name).into_iter().flatten() {
            if let Some(needed) = waiting.get_mut(dependent) {
                needed.remove(name);
                if needed.is_empty() {
                    free.insert(dependent);
                }
            }
        }
    }
    let Some(first) = waiting.keys().next() else { return Ok(order) };
    // Every service that waits has a dependency that waits, so this walk comes back to a service it has seen.
    let mut walk = vec![*first];
    let circle = loop {
        let last = walk[walk.len() - 1];
        let Some(next) =
            waiting.get(last).and_then(|needed| needed.iter().find(|one| waiting.contains_key(*one)))
        else {
            break walk;
        };
        if let Some(start) = walk.iter().position(|name| name == next) {
            walk.push(next);
            break walk.split_off(start);
        }
        walk.push(next);
    };
    let at = project.entry("services", circle[0]);
    let at = at.map_or_else(|| SourcePosition::start_of(""), |entry| entry.key_at.clone());
    let shown =
        if circle.len() > 10 { format!("{} -> ...", circle[..10].join(" -> ")) } else { circle.join(" -> ") };
    let path = format!("services.{}.depends_on", circle[0]);
    Err(ComposeProblem::new(&at, path, format!("services depend on each other: {shown}")))
}
