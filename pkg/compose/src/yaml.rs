//! YAML text as a tree whose nodes have positions. Aliases and merge keys are resolved here, within a bound.

use std::collections::BTreeMap;
use std::sync::Arc;

use granit_parser::{Event, Options, Parser, ScalarStyle, Span, Tag};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use crate::problem::{ComposeProblem, KeyPath, SourcePosition};

/// The most bytes of one file.
pub const MAX_FILE_SIZE: usize = 16 << 20;
/// The deepest nesting, also through aliases.
pub const MAX_DEPTH: usize = 64;

/// What may still be read and copied. All nodes of all files count, and every copy that an alias, a merge key or
/// `extends` makes; time and memory are proportional to them.
#[derive(Debug, Clone)]
pub struct WorkBudget {
    /// Values of YAML.
    pub nodes: usize,
    /// Bytes of text in them.
    pub bytes: usize,
}

impl Default for WorkBudget {
    fn default() -> Self {
        Self { nodes: 500_000, bytes: 64 << 20 }
    }
}

impl WorkBudget {
    /// Takes from the budget.
    ///
    /// # Errors
    /// The budget is used up at this position.
    pub fn take(&mut self, nodes: usize, bytes: usize, at: &SourcePosition) -> Result<(), ComposeProblem> {
        match (self.nodes.checked_sub(nodes), self.bytes.checked_sub(bytes)) {
            (Some(nodes), Some(bytes)) => {
                *self = Self { nodes, bytes };
                Ok(())
            }
            _ => {
                let most = Self::default();
                let message = format!(
                    "the files have more than {} values or {} MiB of text, counting every use of an alias and of \
                     `extends`; split the application into several",
                    most.nodes,
                    most.bytes >> 20
                );
                Err(ComposeProblem::new(at, "", message))
            }
        }
    }

    /// Takes what a copy of this tree needs.
    ///
    /// # Errors
    /// The budget is used up by it.
    pub fn take_copy(&mut self, node: &YamlNode) -> Result<(), ComposeProblem> {
        let (nodes, bytes) = node.size();
        self.take(nodes, bytes, &node.at)
    }
}

/// A value with its position.
#[derive(Debug, Clone, PartialEq)]
pub struct YamlNode {
    /// The value.
    pub value: YamlValue,
    /// Where it starts.
    pub at: SourcePosition,
    /// How it is merged with the value of earlier files.
    pub merge: MergeMode,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum YamlValue {
    /// Text, a number, a boolean or null.
    Scalar(Arc<str>, ScalarType),
    /// Items.
    List(Vec<YamlNode>),
    /// Values by key.
    Map(YamlMap),
}

/// Values by key, in the order of the keys.
pub type YamlMap = BTreeMap<Arc<str>, YamlEntry>;

/// A value of a mapping, with the position of its key.
#[derive(Debug, Clone, PartialEq)]
pub struct YamlEntry {
    /// Where the key starts.
    pub key_at: SourcePosition,
    /// The value.
    pub node: YamlNode,
}

/// What a scalar is by the core schema of YAML 1.2; its text is as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScalarType {
    /// `null`, `~`, or nothing.
    Null,
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Integer,
    /// Another number.
    Float,
    /// Everything else, and what is quoted.
    Text,
}

/// How a value is merged with that of earlier files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MergeMode {
    /// By the rules of its key.
    #[default]
    Merge,
    /// `!override`: it replaces the earlier value.
    Override,
    /// `!reset`: the earlier value is removed, and there is none.
    Reset,
}

impl YamlNode {
    /// A text.
    pub fn text(text: &str, at: &SourcePosition) -> Self {
        Self::scalar(text, ScalarType::Text, at)
    }

    /// A scalar.
    pub fn scalar(text: &str, kind: ScalarType, at: &SourcePosition) -> Self {
        Self::new(YamlValue::Scalar(text.into(), kind), at)
    }

    /// A value that is merged by the rules of its key.
    pub fn new(value: YamlValue, at: &SourcePosition) -> Self {
        Self { value, at: at.clone(), merge: MergeMode::Merge }
    }

    /// A mapping of these keys and values, at one position.
    pub fn map_of<'a>(entries: impl IntoIterator<Item = (&'a str, YamlNode)>, at: &SourcePosition) -> Self {
        let entry = |(key, node): (&str, YamlNode)| (key.into(), YamlEntry { key_at: at.clone(), node });
        Self::new(YamlValue::Map(entries.into_iter().map(entry).collect()), at)
    }

    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        matches!(self.value, YamlValue::Scalar(_, ScalarType::Null))
    }

    /// The text of a scalar that is not null.
    pub fn as_text(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Scalar(_, ScalarType::Null) | YamlValue::List(_) | YamlValue::Map(_) => None,
            YamlValue::Scalar(text, _) => Some(text),
        }
    }

    /// The entries of a mapping.
    pub fn as_map(&self) -> Option<&YamlMap> {
        match &self.value {
            YamlValue::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The items of a list; none of anything else.
    pub fn items(&self) -> &[YamlNode] {
        match &self.value {
            YamlValue::List(items) => items,
            _ => &[],
        }
    }

    /// The value of a key, if this is a mapping that has it and it is not null.
    pub fn get(&self, key: &str) -> Option<&YamlNode> {
        let node = &self.as_map()?.get(key)?.node;
        (!node.is_null()).then_some(node)
    }

    /// What it is, for messages.
    pub fn type_name(&self) -> &'static str {
        match &self.value {
            YamlValue::Scalar(_, ScalarType::Null) => "null",
            YamlValue::Scalar(_, ScalarType::Bool) => "a boolean",
            YamlValue::Scalar(_, ScalarType::Integer | ScalarType::Float) => "a number",
            YamlValue::Scalar(_, ScalarType::Text) => "a text",
            YamlValue::List(_) => "a list",
            YamlValue::Map(_) => "a mapping",
        }
    }

    /// Nodes and bytes of the tree.
    pub fn size(&self) -> (usize, usize) {
        let (mut nodes, mut bytes) = (1, 0);
        let mut add = |node: &YamlNode, key: usize| {
            let (inner, text) = node.size();
            nodes += inner;
            bytes += text + key;
        };
        match &self.value {
            YamlValue::Scalar(text, _) => bytes += text.len(),
            YamlValue::List(items) => items.iter().for_each(|item| add(item, 0)),
            YamlValue::Map(map) => map.iter().for_each(|(key, entry)| add(&entry.node, key.len())),
        }
        (nodes, bytes)
    }
}

impl Serialize for YamlNode {
    /// A `$` is doubled, so that the output is a Compose file that means the same.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.value {
            YamlValue::Scalar(_, ScalarType::Null) => serializer.serialize_unit(),
            YamlValue::Scalar(text, ScalarType::Bool) => serializer.serialize_bool(&**text == "true"),
            YamlValue::Scalar(text, ScalarType::Integer) if text.parse::<i64>().is_ok() => {
                serializer.serialize_i64(text.parse().unwrap_or_default())
            }
            YamlValue::Scalar(text, ScalarType::Float) if text.parse::<f64>().is_ok() => {
                serializer.serialize_f64(text.parse().unwrap_or_default())
            }
            YamlValue::Scalar(text, _) => serializer.serialize_str(&text.replace('$', "$$")),
            YamlValue::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(item)?;
                }
                list.end()
            }
            YamlValue::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, entry) in entries {
                    map.serialize_entry(&**key, &entry.node)?;
                }
                map.end()
            }
        }
    }
}

/// Parses one document.
///
/// # Errors
/// The first thing that is not YAML, is not one document, or exceeds a limit.
pub fn parse(file: &str, text: &str, budget: &mut WorkBudget) -> Result<YamlNode, ComposeProblem> {
    let mut documents = read(file, text, budget, 1)?;
    Ok(documents
        .pop()
        .unwrap_or_else(|| YamlNode::scalar("", ScalarType::Null, &SourcePosition::start_of(file))))
}

/// Parses all documents of a file, which `---` separates.
///
/// # Errors
/// The first thing that is not YAML, or exceeds a limit.
pub fn parse_documents(
    file: &str,
    text: &str,
    budget: &mut WorkBudget,
) -> Result<Vec<YamlNode>, ComposeProblem> {
    read(file, text, budget, usize::MAX)
}

fn read(
    file: &str,
    text: &str,
    budget: &mut WorkBudget,
    most: usize,
) -> Result<Vec<YamlNode>, ComposeProblem> {
    let file: Arc<str> = file.into();
    let start = SourcePosition { file: Arc::clone(&file), line: 1, column: 1 };
    if text.len() > MAX_FILE_SIZE {
        let message = format!("the file has {} bytes, more than {MAX_FILE_SIZE}", text.len());
        return Err(ComposeProblem::new(&start, "", message));
    }
    let mut options = Options::default();
    options.set_emit_comments(false);
    let (open, anchors, roots) = (Vec::new(), BTreeMap::new(), Vec::new());
    let mut builder = TreeBuilder { file, open, anchors, roots, most, budget };
    for next in Parser::new_from_str_with_options(text, options) {
        match next {
            Ok((event, span)) => builder.add(event, &span)?,
            Err(error) => {
                let at = builder.position(error.marker().line(), error.marker().col());
                return Err(ComposeProblem::new(&at, "", format!("is not YAML: {}", error.info())));
            }
        }
    }
    Ok(builder.roots)
}

/// A node that is not complete.
struct OpenNode {
    content: OpenContent,
    at: SourcePosition,
    merge: MergeMode,
    anchor: usize,
    /// Nesting below it.
    height: usize,
}

enum OpenContent {
    List(Vec<YamlNode>),
    /// The key waits for its value. The mappings of merge keys are last.
    Map(YamlMap, Option<(Arc<str>, SourcePosition, bool)>, Vec<YamlNode>),
}

struct TreeBuilder<'b> {
    file: Arc<str>,
    open: Vec<OpenNode>,
    /// Complete nodes with an anchor, and their height.
    anchors: BTreeMap<usize, (YamlNode, usize)>,
    roots: Vec<YamlNode>,
    /// The most documents.
    most: usize,
    budget: &'b mut WorkBudget,
}

impl TreeBuilder<'_> {
    fn position(&self, line: usize, column: usize) -> SourcePosition {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        SourcePosition { file: Arc::clone(&self.file), line: number(line), column: number(column + 1) }
    }

    fn add(&mut self, event: Event<'_>, span: &Span) -> Result<(), ComposeProblem> {
        let at = self.position(span.start.line(), span.start.col());
        match event {
            Event::DocumentStart(..) if self.roots.len() >= self.most => {
                Err(ComposeProblem::new(&at, "", "a second document; put it into a file of its own"))
            }
            Event::DocumentStart(..) => {
                self.anchors.clear();
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.budget.take(1, text.len(), &at)?;
                let plain = style == ScalarStyle::Plain;
                let (merge, is_text) = read_tag(tag.as_deref(), &at)?;
                if plain && &*text == "<<" && self.take_merge_key(&at) {
                    return Ok(());
                }
                let kind = if plain && !is_text { scalar_type(&text) } else { ScalarType::Text };
                let node = YamlNode { value: YamlValue::Scalar((&*text).into(), kind), at, merge };
                self.finish(node, anchor, 0)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.start(OpenContent::List(Vec::new()), at, anchor, tag.as_deref())
            }
            Event::MappingStart(_, anchor, tag) => {
                self.start(OpenContent::Map(YamlMap::new(), None, Vec::new()), at, anchor, tag.as_deref())
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(OpenNode { content, at, merge, anchor, height }) = self.open.pop() else {
                    return Ok(());
                };
                let value = match content {
                    OpenContent::List(items) => YamlValue::List(items),
                    OpenContent::Map(map, _, merged) => YamlValue::Map(with_merge_keys(map, merged)),
                };
                self.finish(YamlNode { value, at, merge }, anchor, height + 1)
            }
            Event::Alias(id) => {
                let Some((node, height)) = self.anchors.get(&id) else {
                    return Err(ComposeProblem::new(&at, "", "an alias of the value that contains it"));
                };
                // Charged at the alias, so that the error names the line that asks for the copy.
                let (nodes, bytes) = node.size();
                self.budget.take(nodes, bytes, &at)?;
                let (node, height) = (node.clone(), *height);
                self.finish(node, 0, height)
            }
            _ => Ok(()),
        }
    }

    fn start(
        &mut self,
        content: OpenContent,
        at: SourcePosition,
        anchor: usize,
        tag: Option<&Tag>,
    ) -> Result<(), ComposeProblem> {
        self.budget.take(1, 0, &at)?;
        if let Some(OpenNode { content: OpenContent::Map(_, None, _), .. }) = self.open.last() {
            return Err(ComposeProblem::new(&at, "", "a list or mapping cannot be a key; give a text"));
        }
        let (merge, _) = read_tag(tag, &at)?;
        self.open.push(OpenNode { content, at, merge, anchor, height: 0 });
        Ok(())
    }

    /// Whether the scalar `<<` is a key here; its value is merged.
    fn take_merge_key(&mut self, at: &SourcePosition) -> bool {
        match self.open.last_mut().map(|open| &mut open.content) {
            Some(OpenContent::Map(_, key @ None, _)) => {
                *key = Some(("<<".into(), at.clone(), true));
                true
            }
            _ => false,
        }
    }

    /// Adds a complete node to the one that contains it.
    fn finish(&mut self, node: YamlNode, anchor: usize, height: usize) -> Result<(), ComposeProblem> {
        if self.open.len() + height > MAX_DEPTH {
            let message = format!("is nested more than {MAX_DEPTH} levels deep");
            return Err(ComposeProblem::new(&node.at, "", message));
        }
        if anchor != 0 {
            self.budget.take_copy(&node)?;
            self.anchors.insert(anchor, (node.clone(), height));
        }
        let Some(open) = self.open.last_mut() else {
            self.roots.push(node);
            return Ok(());
        };
        open.height = open.height.max(height);
        match &mut open.content {
            OpenContent::List(items) => items.push(node),
            OpenContent::Map(map, waiting, merged) => match waiting.take() {
                None => match node.value {
                    YamlValue::Scalar(text, _) => *waiting = Some((text, node.at, false)),
                    _ => return Err(ComposeProblem::new(&node.at, "", "a key must be a text")),
                },
                Some((_, at, true)) => add_merged(merged, node, &at)?,
                Some((key, key_at, false)) => {
                    if let Some(earlier) = map.get(&key) {
                        let message = format!(
                            "{key:?} is given twice; the other one is in line {}",
                            earlier.key_at.line
                        );
                        return Err(ComposeProblem::new(&key_at, "", message));
                    }
                    map.insert(key, YamlEntry { key_at, node });
                }
            },
        }
        Ok(())
    }
}

/// Adds the value of a merge key: a mapping, or a list of them.
fn add_merged(merged: &mut Vec<YamlNode>, node: YamlNode, at: &SourcePosition) -> Result<(), ComposeProblem> {
    let all = match node.value {
        YamlValue::List(items) => items,
        _ => vec![node],
    };
    if let Some(other) = all.iter().find(|one| one.as_map().is_none()) {
        let message = format!("merges {}; give a mapping or a list of mappings", other.type_name());
        return Err(ComposeProblem::new(at, KeyPath::Root.key("<<"), message));
    }
    merged.extend(all);
    Ok(())
}

/// Keys of the mapping itself come first, then those of earlier merged mappings.
fn with_merge_keys(mut map: YamlMap, merged: Vec<YamlNode>) -> YamlMap {
    for node in merged {
        let YamlValue::Map(more) = node.value else { continue };
        for (key, entry) in more {
            map.entry(key).or_insert(entry);
        }
    }
    map
}

/// How the node is merged, and whether it is a text in any case.
fn read_tag(tag: Option<&Tag>, at: &SourcePosition) -> Result<(MergeMode, bool), ComposeProblem> {
    let Some(tag) = tag else { return Ok((MergeMode::Merge, false)) };
    match (tag.handle(), tag.suffix(), tag.core_suffix()) {
        ("!", "reset", _) => Ok((MergeMode::Reset, false)),
        ("!", "override", _) => Ok((MergeMode::Override, false)),
        ("!", "", _) | (_, _, Some("str")) => Ok((MergeMode::Merge, true)),
        (_, _, Some("int" | "float" | "bool" | "null" | "seq" | "map" | "merge")) => {
            Ok((MergeMode::Merge, false))
        }
        _ => {
            let message = format!("the tag {} is not known; there are !reset and !override", tag.original());
            Err(ComposeProblem::new(at, "", message))
        }
    }
}

/// The type of a plain scalar.
fn scalar_type(text: &str) -> ScalarType {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return ScalarType::Null,
        "true" | "True" | "TRUE" | "false" | "False" | "FALSE" => return ScalarType::Bool,
        _ => {}
    }
    if parse_integer(text).is_some() {
        return ScalarType::Integer;
    }
    let digits = text.trim_start_matches(['-', '+']);
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && digits.bytes().all(|b| b.is_ascii_digit() || b".eE+-".contains(&b))
        && text.parse::<f64>().is_ok();
    let is_special = matches!(digits, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN");
    if is_number || is_special { ScalarType::Float } else { ScalarType::Text }
}

/// A whole number: decimal, octal with `0o` or a leading 0, hexadecimal with `0x`.
pub fn parse_integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x', ..] => (&digits[2..], 16),
        [b'0', b'o', ..] => (&digits[2..], 8),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let number = i64::from_str_radix(digits, radix).ok()?;
    Some(if negative { -number } else { number })
}

#[cfg(test)]
mod tests;
