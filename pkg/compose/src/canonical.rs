//! Checks the values of one file against the schema, and replaces short forms by long ones.

mod short;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::problem::{ComposeProblem, KeyPath, MAX_SUGGESTIONS, SourcePosition, similar};
use crate::scalar::{duration_text, parse_bool, parse_duration, parse_size, seccomp_file, split_words};
use crate::schema::{SchemaNode, ShortForm, ValueForm};
use crate::yaml::{
    MergeMode, ScalarType, WorkBudget, YamlEntry, YamlMap, YamlNode, YamlValue, parse_integer,
};

/// The key of a bind mount whose path is on the machine of the files: it was given relative to them. Canonical files
/// keep it.
pub const LOCAL_PATH: &str = "x-warren-local";

/// Checks values and makes them canonical. All problems are collected; a value with a problem becomes null.
pub struct Canonicalizer<'a> {
    /// The directory of relative paths.
    pub base: &'a Path,
    /// What long forms may take.
    pub budget: &'a mut WorkBudget,
    /// What is wrong.
    pub problems: &'a mut Vec<ComposeProblem>,
}

/// Why a value is not of its form.
type FormError = (SourcePosition, String);

impl Canonicalizer<'_> {
    /// The canonical form of a value. Null and what is reset are returned as they are.
    pub fn canonical(&mut self, node: YamlNode, schema: &SchemaNode, path: KeyPath<'_>) -> YamlNode {
        if node.merge == MergeMode::Reset || node.is_null() {
            return node;
        }
        let (at, merge) = (node.at.clone(), node.merge);
        match self.value(node, schema, path) {
            Ok(value) => YamlNode { value, at, merge },
            Err((at, message)) => {
                self.problems.push(ComposeProblem::new(&at, path, message));
                YamlNode { merge, ..YamlNode::scalar("", ScalarType::Null, &at) }
            }
        }
    }

    fn value(
        &mut self,
        node: YamlNode,
        schema: &SchemaNode,
        path: KeyPath<'_>,
    ) -> Result<YamlValue, FormError> {
        let short = schema.key.and_then(|key| key.short);
        let node = match short {
            Some(short) => short::lengthened(node, short)?,
            None => node,
        };
        let expected = |what: &str| (node.at.clone(), format!("is {}; give {what}", node.type_name()));
        let at = &node.at;
        match schema.form() {
            ValueForm::Unchecked => Ok(node.value),
            ValueForm::Map => match node.value {
                YamlValue::Map(map) => Ok(YamlValue::Map(self.map(map, at, schema, path))),
                _ => Err(expected("a mapping")),
            },
            // A mapping is the old form of a name outside of the project; the mapping around it takes the name.
            ValueForm::Bool if short == Some(ShortForm::External) && node.as_map().is_some() => {
                match node.value {
                    YamlValue::Map(map) => Ok(YamlValue::Map(self.map(map, at, schema, path))),
                    _ => Err(expected("a boolean")),
                }
            }
            ValueForm::MapOf => match node.value {
                YamlValue::Map(map) => Ok(YamlValue::Map(self.map_of(map, schema, path))),
                _ => Err(expected("a mapping")),
            },
            ValueForm::List => match node.value {
                YamlValue::List(items) => Ok(YamlValue::List(self.list(items, schema, path))),
                _ => Err(expected("a list")),
            },
            ValueForm::Pairs => pairs(node),
            ValueForm::Hosts => hosts(node),
            ValueForm::TextList => texts(node),
            ValueForm::SecurityOptions => {
                let YamlValue::List(items) = texts(node)? else { return Ok(no_items()) };
                let absolute = |item: YamlNode| match item.as_text().and_then(seccomp_file) {
                    Some(file) => YamlNode::text(&format!("seccomp:{}", self.absolute(file)), &item.at),
                    None => item,
                };
                Ok(YamlValue::List(items.into_iter().map(absolute).collect()))
            }
            ValueForm::TextOrList => texts(one_item(node)),
            ValueForm::PathOrList => {
                let YamlValue::List(items) = texts(one_item(node))? else { return Ok(no_items()) };
                let absolute = |item: YamlNode| {
                    let path = self.absolute(item.as_text().unwrap_or_default());
                    YamlNode::text(&path, &item.at)
                };
                Ok(YamlValue::List(items.into_iter().map(absolute).collect()))
            }
            ValueForm::Words => match node.as_text().filter(|_| is_text(&node)) {
                Some(command) => {
                    let words = split_words(command).map_err(|why| (node.at.clone(), why))?;
                    let words = words.iter().map(|word| YamlNode::text(word, &node.at));
                    Ok(YamlValue::List(words.collect()))
                }
                None => texts(node),
            },
            form => scalar(&node, form, |path| self.absolute(path)),
        }
    }

    fn map(&mut self, map: YamlMap, at: &SourcePosition, schema: &SchemaNode, path: KeyPath<'_>) -> YamlMap {
        let mut checked = YamlMap::new();
        for (key, YamlEntry { key_at, node }) in map {
            if key.starts_with("x-") {
                checked.insert(key, YamlEntry { key_at, node });
                continue;
            }
            let Some(inner) = schema.keys.get(&*key) else {
                let known = schema.keys.keys().copied().filter(|_| self.problems.len() < MAX_SUGGESTIONS);
                let suggestion = match similar(&key, known) {
                    Some(similar) => format!("did you mean {similar:?}?"),
                    None => "leave it out, or begin its name with x-".to_owned(),
                };
                let message = format!("{key:?} is not a key of the Compose format here; {suggestion}");
                self.problems.push(ComposeProblem::new(&key_at, path, message));
                continue;
            };
            let node = self.canonical(node, inner, path.key(&key));
            checked.insert(key, YamlEntry { key_at, node });
        }
        if let Some(external) = checked.get_mut("external")
            && let YamlValue::Map(old) = &external.node.value
        {
            let name = old.get("name").cloned();
            external.node = YamlNode::scalar("true", ScalarType::Bool, &external.node.at);
            if let Some(name) = name {
                checked.insert("name".into(), name);
            }
        }
        match schema.key.and_then(|key| key.short) {
            Some(ShortForm::Port) => {
                let protocol = YamlNode::text("tcp", at);
                checked.entry("protocol".into()).or_insert(YamlEntry { key_at: at.clone(), node: protocol });
            }
            Some(ShortForm::Mount) => self.mount(&mut checked, at, path),
            _ => {}
        }
        checked
    }

    /// Makes the path of a bind mount absolute, and marks one that is on the machine of the files.
    fn mount(&mut self, mount: &mut YamlMap, at: &SourcePosition, path: KeyPath<'_>) {
        let Some(kind) = mount.get("type").and_then(|entry| entry.node.as_text()) else {
            let message = "the type is missing; give `type: bind`, `type: volume` or `type: tmpfs`";
            self.problems.push(ComposeProblem::new(at, path, message));
            return;
        };
        if kind != "bind" {
            return;
        }
        let Some(entry) = mount.get_mut("source") else { return };
        let Some(source) = entry.node.as_text().map(str::to_owned) else { return };
        if source.starts_with('~') {
            let message = format!("{source:?} is a path of a user; give an absolute path of the node");
            self.problems.push(ComposeProblem::new(&entry.node.at, path, message));
        } else if !source.starts_with('/') {
            let at = entry.node.at.clone();
            entry.node = YamlNode::text(&self.absolute(&source), &at);
            let yes = YamlNode::scalar("true", ScalarType::Bool, &at);
            mount.entry(LOCAL_PATH.into()).or_insert(YamlEntry { key_at: at, node: yes });
        }
    }

    fn map_of(&mut self, map: YamlMap, schema: &SchemaNode, path: KeyPath<'_>) -> YamlMap {
        let Some(inner) = schema.values.as_deref() else { return map };
        let mut checked = YamlMap::new();
        for (key, YamlEntry { key_at, node }) in map {
            let node = self.canonical(node, inner, path.key(&key));
            checked.insert(key, YamlEntry { key_at, node });
        }
        checked
    }

    fn list(&mut self, items: Vec<YamlNode>, schema: &SchemaNode, path: KeyPath<'_>) -> Vec<YamlNode> {
        let Some(inner) = schema.items.as_deref() else { return items };
        let is_port = inner.key.and_then(|key| key.short) == Some(ShortForm::Port);
        let mut checked = Vec::with_capacity(items.len());
        for (i, item) in items.into_iter().enumerate() {
            let path = path.item(i);
            if item.is_null() {
                self.problems.push(ComposeProblem::new(&item.at, path, "is empty; leave it out"));
                continue;
            }
            let (true, Some(text)) = (is_port, item.as_text()) else {
                checked.push(self.canonical(item, inner, path));
                continue;
            };
            match short::ports(text, &item.at) {
                Ok(ports) => {
                    for port in ports {
                        if let Err(problem) = self.budget.take_copy(&port) {
                            self.problems.push(problem);
                            return checked;
                        }
                        checked.push(self.canonical(port, inner, path));
                    }
                }
                Err(message) => self.problems.push(ComposeProblem::new(&item.at, path, message)),
            }
        }
        checked
    }

    /// An address is no path.
    fn absolute(&self, path: &str) -> String {
        if path.contains("://") || path.starts_with("git@") {
            return path.to_owned();
        }
        normalized(&self.base.join(path)).to_string_lossy().into_owned()
    }
}

/// The path without `.` and `..`, as text alone shows.
pub fn normalized(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if parts.file_name().is_some() => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts
}

fn no_items() -> YamlValue {
    YamlValue::List(Vec::new())
}

fn is_text(node: &YamlNode) -> bool {
    matches!(node.value, YamlValue::Scalar(_, ScalarType::Text))
}

/// A list of one scalar; other values are returned as they are.
fn one_item(node: YamlNode) -> YamlNode {
    match node.value {
        YamlValue::Scalar(..) => {
            let at = node.at.clone();
            YamlNode::new(YamlValue::List(vec![node]), &at)
        }
        _ => node,
    }
}

fn texts(node: YamlNode) -> Result<YamlValue, FormError> {
    let YamlValue::List(items) = node.value else {
        return Err((node.at.clone(), format!("is {}; give a list of texts", node.type_name())));
    };
    match items.iter().find(|item| !is_text(item)) {
        Some(other) => Err((other.at.clone(), format!("has {}; give a text in quotes", other.type_name()))),
        None => Ok(YamlValue::List(items)),
    }
}

/// A value of a mapping of texts: numbers and booleans as they are written.
fn pair_value(node: &YamlNode) -> Result<YamlNode, FormError> {
    match &node.value {
        YamlValue::Scalar(_, ScalarType::Null) => Ok(node.clone()),
        YamlValue::Scalar(text, _) => Ok(YamlNode { merge: node.merge, ..YamlNode::text(text, &node.at) }),
        _ => Err((node.at.clone(), format!("has {}; give a text", node.type_name()))),
    }
}

fn pairs(node: YamlNode) -> Result<YamlValue, FormError> {
    let mut pairs = YamlMap::new();
    match node.value {
        YamlValue::Map(map) => {
            for (key, YamlEntry { key_at, node }) in map {
                let node = if node.merge == MergeMode::Reset { node } else { pair_value(&node)? };
                pairs.insert(key, YamlEntry { key_at, node });
            }
        }
        YamlValue::List(items) => {
            for item in items {
                let Some(text) = item.as_text() else {
                    let message = format!("has {}; give KEY=VALUE", item.type_name());
                    return Err((item.at, message));
                };
                let (key, node) = match text.split_once('=') {
                    Some((key, value)) => (key, YamlNode::text(value, &item.at)),
                    None => (text, YamlNode::scalar("", ScalarType::Null, &item.at)),
                };
                pairs.insert(key.into(), YamlEntry { key_at: item.at.clone(), node });
            }
        }
        YamlValue::Scalar(..) => {
            return Err((node.at.clone(), format!("is {}; give a mapping", node.type_name())));
        }
    }
    match pairs.iter().find(|(key, _)| key.is_empty()) {
        Some((_, entry)) => Err((entry.key_at.clone(), "has an empty key; give KEY=VALUE".to_owned())),
        None => Ok(YamlValue::Map(pairs)),
    }
}

fn hosts(node: YamlNode) -> Result<YamlValue, FormError> {
    let mut hosts: BTreeMap<Arc<str>, (SourcePosition, Vec<YamlNode>)> = BTreeMap::new();
    let mut add = |name: &str, key_at: SourcePosition, address: &str, at: &SourcePosition| {
        let address = address.trim_start_matches('[').trim_end_matches(']');
        let (_, addresses) = hosts.entry(name.into()).or_insert_with(|| (key_at, Vec::new()));
        addresses.push(YamlNode::text(address, at));
    };
    let wrong = |node: &YamlNode| (node.at.clone(), format!("has {}; give NAME=ADDRESS", node.type_name()));
    match &node.value {
        YamlValue::Map(map) => {
            for (name, YamlEntry { key_at, node }) in map {
                let node = one_item(node.clone());
                for item in node.items() {
                    let address = item.as_text().ok_or_else(|| wrong(item))?;
                    add(name, key_at.clone(), address, &item.at);
                }
            }
        }
        YamlValue::List(items) => {
            for item in items {
                let text = item.as_text().ok_or_else(|| wrong(item))?;
                let pair = text.split_once('=').or_else(|| text.split_once(':'));
                let (name, address) =
                    pair.ok_or_else(|| (item.at.clone(), format!("{text:?} is not NAME=ADDRESS")))?;
                add(name, item.at.clone(), address, &item.at);
            }
        }
        YamlValue::Scalar(..) => return Err(wrong(&node)),
    }
    let entry = |(name, (key_at, addresses)): (Arc<str>, (SourcePosition, Vec<YamlNode>))| {
        let node = YamlNode::new(YamlValue::List(addresses), &key_at);
        (name, YamlEntry { key_at, node })
    };
    Ok(YamlValue::Map(hosts.into_iter().map(entry).collect()))
}

fn scalar(
    node: &YamlNode,
    form: ValueForm,
    absolute: impl Fn(&str) -> String,
) -> Result<YamlValue, FormError> {
    let YamlValue::Scalar(text, kind) = &node.value else {
        return Err((node.at.clone(), format!("is {}; give {}", node.type_name(), expected(form))));
    };
    let is_text = *kind == ScalarType::Text;
    let value = |text: String, kind| Some(YamlValue::Scalar(text.into(), kind));
    let result = match form {
        ValueForm::Text if is_text => value(text.to_string(), ScalarType::Text),
        ValueForm::Text => {
            let message = format!("is {}; write it in quotes: \"{text}\"", node.type_name());
            return Err((node.at.clone(), message));
        }
        ValueForm::AnyScalar => value(text.to_string(), ScalarType::Text),
        ValueForm::Path if is_text && !text.is_empty() => value(absolute(text), ScalarType::Text),
        ValueForm::Bool if is_text || *kind == ScalarType::Bool => {
            parse_bool(text).and_then(|on| value(on.to_string(), ScalarType::Bool))
        }
        ValueForm::Integer => {
            parse_integer(text).and_then(|number| value(number.to_string(), ScalarType::Integer))
        }
        ValueForm::Duration if is_text => {
            parse_duration(text).and_then(|time| value(duration_text(time), ScalarType::Text))
        }
        ValueForm::Size => parse_size(text).and_then(|bytes| value(bytes.to_string(), ScalarType::Text)),
        ValueForm::FileMode => {
            let bits = if is_text { i64::from_str_radix(text, 8).ok() } else { parse_integer(text) };
            let bits = bits.filter(|bits| *bits >= 0);
            bits.and_then(|bits| value(format!("{bits:04o}"), ScalarType::Text))
        }
        _ => None,
    };
    result.ok_or_else(|| (node.at.clone(), format!("{text:?} is not {}", expected(form))))
}

/// What a scalar of this form is.
fn expected(form: ValueForm) -> &'static str {
    match form {
        ValueForm::Bool => "true or false",
        ValueForm::Integer => "a whole number",
        ValueForm::Duration => "a duration like 1m30s",
        ValueForm::Size => "a number of bytes like 1024 or 64m",
        ValueForm::FileMode => "permission bits in octal like \"0440\"",
        ValueForm::Path => "a path",
        _ => "a text",
    }
}
