//! A project: everything that its files say, merged and in canonical form.

use std::fmt;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::interpolation::Variables;
use crate::problem::ComposeProblem;
use crate::yaml::{YamlEntry, YamlMap, YamlNode};

/// A loaded project. It serializes as a Compose file that means the same.
#[derive(Clone)]
pub struct Project {
    /// The canonical tree.
    pub root: YamlNode,
    /// The environment with the variables of env files.
    pub variables: Variables,
    /// What has no effect, or another one than in Docker.
    pub warnings: Vec<ComposeProblem>,
}

/// The order of the output.
const ORDER: [&str; 6] = ["name", "services", "networks", "volumes", "configs", "secrets"];

impl fmt::Debug for Project {
    /// Without the variables, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Project").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Project {
    /// The name in the files.
    pub fn name(&self) -> Option<&str> {
        self.root.get("name").and_then(YamlNode::as_text)
    }

    /// One entry of a section.
    pub fn entry(&self, section: &str, key: &str) -> Option<&YamlEntry> {
        self.root.get(section).and_then(YamlNode::as_map)?.get(key)
    }

    /// The entries of a section: `services`, `networks`, `volumes`, `secrets` or `configs`.
    pub fn section(&self, name: &str) -> impl Iterator<Item = (&str, &YamlEntry)> {
        let entries = self.root.get(name).and_then(YamlNode::as_map);
        entries.into_iter().flatten().map(|(key, entry)| (&**key, entry))
    }
}

/// The names of the services that must be created before this one, with their conditions.
pub fn dependencies(service: &YamlNode) -> impl Iterator<Item = (&str, &YamlNode)> {
    let depends = service.get("depends_on").and_then(YamlNode::as_map);
    let depends = depends.into_iter().flatten().map(|(name, entry)| (&**name, &entry.node));
    let links = service.get("links").map(YamlNode::items).unwrap_or_default();
    depends.chain(links.iter().filter_map(|link| Some((link.as_text()?, link))))
}

impl Serialize for Project {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let empty = YamlMap::new();
        let map = self.root.as_map().unwrap_or(&empty);
        let mut output = serializer.serialize_map(None)?;
        let first = ORDER.iter().filter_map(|key| map.get_key_value(*key));
        let rest = map.iter().filter(|(key, _)| !ORDER.contains(&&***key));
        for (key, entry) in first.chain(rest) {
            output.serialize_entry(&**key, &entry.node)?;
        }
        output.end()
    }
}
