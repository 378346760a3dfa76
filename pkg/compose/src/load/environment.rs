//! Env files and label files of services, and variables without a value.

use std::path::Path;

use super::{Loader, Scope, entry_at};
use crate::env_file::{EnvLines, parse_env_file, parse_raw_env_file};
use crate::problem::KeyPath;
use crate::yaml::{YamlEntry, YamlMap, YamlNode, YamlValue};

impl Loader<'_> {
    /// Replaces `env_file` by `environment` and `label_file` by `labels` in all services, and gives variables without a
    /// value that of the environment.
    pub(super) fn resolve_environment(&mut self, root: &mut YamlNode, scope: &Scope) {
        let YamlValue::Map(map) = &mut root.value else { return };
        let Some(YamlValue::Map(services)) = map.get_mut("services").map(|entry| &mut entry.node.value)
        else {
            return;
        };
        let (top, section) = (KeyPath::Root, "services");
        let section = top.key(section);
        for (name, entry) in services {
            let at = entry.node.at.clone();
            let path = section.key(name);
            let YamlValue::Map(service) = &mut entry.node.value else { continue };
            let env_files = service.remove("env_file");
            let label_files = service.remove("label_file");
            let mut environment = YamlMap::new();
            for file in env_files.iter().flat_map(|entry| entry.node.items()) {
                self.read_lines(file, path.key("env_file"), scope, &mut environment);
            }
            let mut labels = YamlMap::new();
            for file in label_files.iter().flat_map(|entry| entry.node.items()) {
                let file = YamlNode::map_of([("path", file.clone())], &file.at);
                self.read_lines(&file, path.key("label_file"), scope, &mut labels);
            }
            for (key, mut found) in [("environment", environment), ("labels", labels)] {
                let known = service.remove(key);
                let key_at = known.as_ref().map_or(&at, |entry| &entry.key_at).clone();
                let node_at = known.as_ref().map_or(&at, |entry| &entry.node.at).clone();
                if let Some(YamlEntry { node: YamlNode { value: YamlValue::Map(given), .. }, .. }) = known {
                    found.extend(given);
                }
                found.retain(|name, entry| {
                    if key == "environment" && entry.node.is_null() {
                        match scope.variables.get(&**name) {
                            Some(value) => entry.node = YamlNode::text(value, &entry.node.at),
                            None => return false,
                        }
                    }
                    true
                });
                if !found.is_empty() {
                    let node = YamlNode::new(YamlValue::Map(found), &node_at);
                    service.insert(key.into(), YamlEntry { key_at, node });
                }
            }
        }
    }

    /// Adds the lines of one env file, which replace those of earlier files.
    fn read_lines(&mut self, file: &YamlNode, path: KeyPath<'_>, scope: &Scope, target: &mut YamlMap) {
        let Some(name) = file.get("path").and_then(YamlNode::as_text) else {
            self.fail(&file.at, path, "the path of the file is missing; give `path`");
            return;
        };
        let name = Path::new(name);
        let is_optional = file.get("required").and_then(YamlNode::as_text) == Some("false");
        let shown = self.shown(name);
        let text = match (self.read)(name) {
            Ok(Some(text)) => text,
            Ok(None) if is_optional => return,
            Ok(None) => {
                let message = format!("there is no file {shown}; create it, or give `required: false`");
                self.fail(&file.at, path, message);
                return;
            }
            Err(why) => {
                self.fail(&file.at, path, format!("{shown} cannot be read: {why}"));
                return;
            }
        };
        let lines: Result<EnvLines, _> = match file.get("format").and_then(YamlNode::as_text) {
            None => parse_env_file(&shown, &text, &scope.variables, &mut self.warnings),
            Some("raw") => parse_raw_env_file(&shown, &text),
            Some(other) => {
                let message = format!("{other:?} is not a format of env files; give raw, or leave it out");
                self.fail(&file.at, path, message);
                return;
            }
        };
        let charged = lines.and_then(|lines| {
            self.budget.take(lines.len(), text.len(), &file.at)?;
            Ok(lines)
        });
        match charged {
            Ok(lines) => {
                for (name, value) in lines {
                    target.insert(name.into(), entry_at(value.as_deref(), &file.at));
                }
            }
            Err(problem) => self.problems.push(problem),
        }
    }
}
