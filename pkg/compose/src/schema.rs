//! Every key of the Compose Specification: the form of its value, how it is merged, and whether Warren honours it.
//!
//! The tables are the only list of keys: values are checked against them, and `docs/compose.md` is made from them.

mod service;
mod top_level;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

/// One key.
#[derive(Debug, Clone, Copy)]
pub struct SchemaKey {
    /// `services.*.ports[].target`: `*` is any name, `[]` any item of a list.
    pub path: &'static str,
    /// The form of its value.
    pub form: ValueForm,
    /// A shorter form, which is replaced by `form`.
    pub short: Option<ShortForm>,
    /// How values of several files are merged.
    pub merge: MergeRule,
    /// What Warren does with it.
    pub support: KeySupport,
}

/// The canonical form of a value. Null stands for a missing value everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueForm {
    /// Text.
    Text,
    /// Text, a number or a boolean, as text.
    AnyScalar,
    /// A path, relative to the directory of the file, as an absolute path.
    Path,
    /// A boolean, or its name as text.
    Bool,
    /// A whole number, also as text.
    Integer,
    /// `1m30s`.
    Duration,
    /// Bytes: a number, or text like `64m`, where `k`, `m`, `g` and `t` are powers of 1024.
    Size,
    /// Permission bits in octal.
    FileMode,
    /// Items of text.
    TextList,
    /// Items of text; `seccomp:FILE` has a path, relative to the directory of the file, as an absolute path.
    SecurityOptions,
    /// One text or a list of them, as a list.
    TextOrList,
    /// One path or a list of them, as a list.
    PathOrList,
    /// A command: words, or text that is split into words as by a shell.
    Words,
    /// A mapping, or a list of `KEY=VALUE`, as a mapping of texts.
    Pairs,
    /// Host names with addresses: a mapping, or a list of `NAME=ADDRESS`, as a mapping of lists.
    Hosts,
    /// A mapping with the keys below this one.
    Map,
    /// A mapping with names that the file chooses.
    MapOf,
    /// A list of the items below this key.
    List,
    /// Anything: what is below is not looked at.
    Unchecked,
}

/// A short form that stands for a longer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShortForm {
    /// One text stands for a mapping with this key.
    Key(&'static str),
    /// One value stands for a list of it.
    OneItem,
    /// A list of names stands for a mapping with these keys and empty values.
    Names,
    /// `[HOST_IP:][PUBLISHED:]TARGET[/PROTOCOL]`, with ranges.
    Port,
    /// `[SOURCE:]TARGET[:OPTIONS]`.
    Mount,
    /// `SOURCE[:TARGET[:PERMISSIONS]]`.
    Device,
    /// One number for both limits.
    Ulimit,
    /// Text is a command for a shell.
    HealthTest,
    /// A boolean, or a mapping with the name, which belongs one level up.
    External,
}

/// How the values of several files are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeRule {
    /// Mappings are merged by key, lists are appended without repeated texts, other values are replaced.
    ByForm,
    /// The later value replaces the earlier one.
    Replace,
    /// Items are appended, and replace those with equal values of these keys.
    ByKeys(&'static [&'static str]),
    /// As mappings, unless the value of this key differs: then the later value replaces the earlier one.
    SameKey(&'static str),
}

/// What Warren does with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySupport {
    /// It takes effect.
    Honoured,
    /// It takes effect; the text says what is different, or which values do not.
    Partly(&'static str),
    /// It takes no effect, and a warning says why.
    Warned(&'static str),
    /// The file is refused, with the reason.
    Refused(&'static str),
}

const fn key(path: &'static str, form: ValueForm, support: KeySupport) -> SchemaKey {
    SchemaKey { path, form, short: None, merge: MergeRule::ByForm, support }
}

const fn honoured(path: &'static str, form: ValueForm) -> SchemaKey {
    key(path, form, KeySupport::Honoured)
}

const fn partly(path: &'static str, form: ValueForm, note: &'static str) -> SchemaKey {
    key(path, form, KeySupport::Partly(note))
}

const fn warned(path: &'static str, form: ValueForm, why: &'static str) -> SchemaKey {
    key(path, form, KeySupport::Warned(why))
}

const fn refused(path: &'static str, why: &'static str) -> SchemaKey {
    key(path, ValueForm::Unchecked, KeySupport::Refused(why))
}

impl SchemaKey {
    const fn short(self, short: ShortForm) -> Self {
        Self { short: Some(short), ..self }
    }

    const fn merged(self, merge: MergeRule) -> Self {
        Self { merge, ..self }
    }
}

/// All keys: the top level, then services.
pub fn schema_keys() -> impl Iterator<Item = &'static SchemaKey> {
    top_level::KEYS.iter().chain(service::KEYS)
}

/// A key with the keys below it.
#[derive(Debug, Default)]
pub struct SchemaNode {
    /// The key itself; none for the root.
    pub key: Option<&'static SchemaKey>,
    /// Keys below it by name.
    pub keys: BTreeMap<&'static str, SchemaNode>,
    /// The values of a mapping with any names.
    pub values: Option<Box<SchemaNode>>,
    /// The items of a list.
    pub items: Option<Box<SchemaNode>>,
}

impl SchemaNode {
    /// The form of its value; the root is a mapping.
    pub fn form(&self) -> ValueForm {
        self.key.map_or(ValueForm::Map, |key| key.form)
    }

    /// The key below this one, where `*` and `[]` are written out.
    pub fn child(&self, name: &str) -> Option<&SchemaNode> {
        self.keys.get(name).or(self.values.as_deref())
    }
}

/// The tree of all keys.
pub fn schema() -> &'static SchemaNode {
    static SCHEMA: LazyLock<SchemaNode> = LazyLock::new(|| {
        let mut root = SchemaNode::default();
        for key in schema_keys() {
            let parts = key.path.split('.').flat_map(|part| {
                let lists = part.matches("[]").count();
                std::iter::once(part.trim_end_matches("[]")).chain(std::iter::repeat_n("[]", lists))
            });
            let node = parts.fold(&mut root, |node, part| match part {
                "*" => &mut **node.values.get_or_insert_default(),
                "[]" => &mut **node.items.get_or_insert_default(),
                name => node.keys.entry(name).or_default(),
            });
            node.key = Some(key);
        }
        root
    });
    &SCHEMA
}

/// Generates the table of docs/compose.md.
pub fn support_table() -> String {
    let mut table = String::from("| key | Warren | |\n|---|---|---|\n");
    for key in schema_keys() {
        let (support, note) = match key.support {
            KeySupport::Honoured => ("honoured", ""),
            KeySupport::Partly(note) => ("honoured", note),
            KeySupport::Warned(why) => ("warned", why),
            KeySupport::Refused(why) => ("refused", why),
        };
        // Writing to a String does not fail.
        let _ = writeln!(table, "| `{}` | {support} | {note} |", key.path);
    }
    table
}
