//! Services that extend others.

use std::path::{Path, PathBuf};

use super::{Loader, MAX_CHAIN, Scope};
use crate::merge::merged;
use crate::problem::{KeyPath, MAX_SUGGESTIONS, SourcePosition, similar};
use crate::schema::schema;
use crate::yaml::{MergeMode, YamlNode, YamlValue};

impl Loader<'_> {
    /// Takes a file out of the scope, with everything that its services extend.
    pub(super) fn extended(&mut self, file: &Path, scope: &mut Scope) -> Option<YamlNode> {
        let services = scope.documents.get(file)?.get("services").and_then(YamlNode::as_map);
        let extends = |node: &YamlNode| node.as_map().is_some_and(|service| service.contains_key("extends"));
        let with_extends = services.into_iter().flatten().filter(|(_, entry)| extends(&entry.node));
        let names: Vec<String> = with_extends.map(|(name, _)| name.to_string()).collect();
        let mut resolved: Vec<Option<YamlNode>> = Vec::with_capacity(names.len());
        for name in &names {
            resolved.push(self.resolve(file, name, None, scope, &mut Vec::new()));
        }
        let mut document = scope.documents.remove(file)?;
        if let YamlValue::Map(map) = &mut document.value
            && let Some(YamlValue::Map(services)) = map.get_mut("services").map(|entry| &mut entry.node.value)
        {
            for (name, node) in names.iter().zip(resolved) {
                if let (Some(entry), Some(node)) = (services.get_mut(&**name), node) {
                    entry.node = node;
                }
            }
        }
        Some(document)
    }

    /// A service of a file, merged with what it extends.
    fn resolve(
        &mut self,
        file: &Path,
        name: &str,
        named_at: Option<&SourcePosition>,
        scope: &mut Scope,
        chain: &mut Vec<(PathBuf, String)>,
    ) -> Option<YamlNode> {
        let key = (file.to_owned(), name.to_owned());
        if let Some(known) = scope.resolved.get(&key) {
            let charged = self.budget.take_copy(known);
            let known = known.clone();
            return charged.map_err(|problem| self.problems.push(problem)).ok().map(|()| known);
        }
        let (top, services) = (KeyPath::Root, "services");
        let services = top.key(services);
        if let Some(at) = named_at {
            let first = chain.first().map_or(name, |(_, first)| first).to_owned();
            let path = services.key(&first);
            if chain.contains(&key) {
                let names: Vec<&str> = chain.iter().map(|(_, name)| &**name).chain([name]).collect();
                self.fail(
                    at,
                    path.key("extends"),
                    format!("services extend each other: {}", names.join(" -> ")),
                );
                return None;
            }
            if chain.len() >= MAX_CHAIN {
                let message = format!("more than {MAX_CHAIN} services extend each other");
                self.fail(at, path.key("extends"), message);
                return None;
            }
        }
        let base = match chain.first() {
            Some((first, _)) if first == file => scope.base.clone(),
            Some(_) => file.parent().unwrap_or(Path::new("/")).to_owned(),
            None => scope.base.clone(),
        };
        if !scope.documents.contains_key(file) {
            self.document(file, &base, scope, named_at)?;
        }
        let services_node = scope.documents.get(file)?.get("services")?;
        let Some(service) = services_node.get(name).cloned() else {
            let known = services_node.as_map().filter(|_| self.problems.len() < MAX_SUGGESTIONS);
            let known = known.into_iter().flatten().map(|(name, _)| &**name);
            let hint = similar(name, known).map_or(String::new(), |name| format!("; did you mean {name:?}?"));
            if let Some(at) = named_at {
                let message = format!("there is no service {name:?} in {}{hint}", self.shown(file));
                self.fail(at, services, message);
            }
            return None;
        };
        let mut service = service;
        let extends = match &mut service.value {
            YamlValue::Map(map) => map.remove("extends"),
            _ => None,
        };
        let extends = extends.filter(|entry| entry.node.merge != MergeMode::Reset && !entry.node.is_null());
        let result = match extends {
            None => service,
            Some(entry) => {
                let text = |key: &str| entry.node.get(key).and_then(YamlNode::as_text).map(str::to_owned);
                let Some(other) = text("service") else {
                    let path = services.key(name);
                    self.fail(&entry.node.at, path.key("extends"), "the service is missing; give `service`");
                    return None;
                };
                let other_file = text("file").map_or_else(|| file.to_owned(), PathBuf::from);
                chain.push(key.clone());
                let base = self.resolve(&other_file, &other, Some(&entry.node.at), scope, chain);
                chain.pop();
                merged(base?, service, schema().child("services").and_then(|services| services.child(name)))
            }
        };
        if let Err(problem) = self.budget.take_copy(&result) {
            self.problems.push(problem);
            return None;
        }
        scope.resolved.insert(key, result.clone());
        Some(result)
    }
}
