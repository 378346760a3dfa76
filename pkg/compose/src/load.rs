//! Loads the files of a project: parsing, variables, `extends`, merging, `include`, env files and profiles.

mod environment;
mod extends;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::canonical::{Canonicalizer, normalized};
use crate::env_file::parse_env_file;
use crate::interpolation::{Variables, interpolate};
use crate::merge::{completed, merged};
use crate::problem::{ComposeProblem, KeyPath, SourcePosition};
use crate::project::Project;
use crate::references::check_references;
use crate::schema::schema;
use crate::support::check_support;
use crate::yaml::{ScalarType, WorkBudget, YamlEntry, YamlMap, YamlNode, YamlValue, parse};

/// The most files of a project, counting each use.
pub const MAX_FILES: usize = 1000;
/// The most files or services that include or extend each other.
pub const MAX_CHAIN: usize = 64;

/// The content of a file; `None` if there is none with that path.
///
/// # Errors
/// Why it cannot be read.
pub type ReadFile<'a> = &'a dyn Fn(&Path) -> Result<Option<String>, String>;

/// What to load.
#[derive(Debug, Clone, Default)]
pub struct ProjectSource {
    /// The files in the order of merging, relative to `working_directory`. The directory of the first one is that of
    /// the project.
    pub files: Vec<PathBuf>,
    /// Absolute.
    pub working_directory: PathBuf,
    /// Env files instead of `.env` in the directory of the project; they must exist.
    pub env_files: Vec<PathBuf>,
    /// The environment; it has precedence over env files.
    pub variables: Variables,
    /// Names of active profiles, or `*` for all.
    pub profiles: BTreeSet<String>,
}

/// The sections whose entries are copied from included files.
const SECTIONS: [&str; 5] = ["services", "networks", "volumes", "secrets", "configs"];

/// Loads a project.
///
/// # Errors
/// All problems that were found, in the order of files and lines.
pub fn load(source: &ProjectSource, read: ReadFile<'_>) -> Result<Project, Vec<ComposeProblem>> {
    let mut loader = Loader {
        read,
        working_directory: &source.working_directory,
        profiles: &source.profiles,
        budget: WorkBudget::default(),
        files: MAX_FILES,
        disabled: BTreeMap::new(),
        problems: Vec::new(),
        warnings: Vec::new(),
    };
    let files: Vec<PathBuf> =
        source.files.iter().map(|file| normalized(&source.working_directory.join(file))).collect();
    let Some(base) = files.first().and_then(|file| file.parent()).map(Path::to_owned) else {
        return Err(vec![ComposeProblem::new(&SourcePosition::start_of(""), "", "no file is given")]);
    };
    let env_files = source.env_files.iter().map(|file| source.working_directory.join(file)).collect();
    let variables = loader.variables(&source.variables, &base, env_files, None);
    let mut scope = Scope { base, variables, documents: BTreeMap::new(), resolved: BTreeMap::new() };
    let root = loader.load_files(&files, &mut scope, &mut Vec::new(), None);
    let Loader { disabled, mut problems, mut warnings, .. } = loader;
    let mut project = Project { root, variables: scope.variables, warnings: Vec::new() };
    if problems.is_empty() {
        check_references(&mut project, &disabled, &mut problems);
    }
    check_support(&project.root, &mut problems, &mut warnings);
    problems.sort();
    problems.dedup();
    warnings.sort();
    warnings.dedup();
    project.warnings = warnings;
    if problems.is_empty() { Ok(project) } else { Err(problems) }
}

struct Loader<'a> {
    read: ReadFile<'a>,
    working_directory: &'a Path,
    profiles: &'a BTreeSet<String>,
    budget: WorkBudget,
    /// How many files may still be read.
    files: usize,
    /// Services whose profiles are not active.
    disabled: BTreeMap<String, Vec<String>>,
    problems: Vec<ComposeProblem>,
    warnings: Vec<ComposeProblem>,
}

/// Files with one project directory and one set of variables.
struct Scope {
    base: PathBuf,
    variables: Variables,
    /// Canonical files by path, until they are merged.
    documents: BTreeMap<PathBuf, YamlNode>,
    /// Services after `extends`, by file and name.
    resolved: BTreeMap<(PathBuf, String), YamlNode>,
}

impl Loader<'_> {
    /// The path for messages: relative to the working directory if the file is below it.
    fn shown(&self, path: &Path) -> String {
        path.strip_prefix(self.working_directory).unwrap_or(path).to_string_lossy().into_owned()
    }

    fn fail(&mut self, at: &SourcePosition, path: impl std::fmt::Display, message: impl std::fmt::Display) {
        self.problems.push(ComposeProblem::new(at, path, message));
    }

    /// The content of a file, or a problem at the position that names it.
    fn content(&mut self, path: &Path, named_at: Option<&SourcePosition>) -> Option<String> {
        let shown = self.shown(path);
        let at = named_at.cloned().unwrap_or_else(|| SourcePosition::start_of(&shown));
        let Some(left) = self.files.checked_sub(1) else {
            self.fail(&at, "", format!("the project has more than {MAX_FILES} files, counting each use"));
            return None;
        };
        self.files = left;
        match (self.read)(path) {
            Ok(Some(text)) => return Some(text),
            Ok(None) => self.fail(&at, "", format!("there is no file {shown}")),
            Err(why) => self.fail(&at, "", format!("{shown} cannot be read: {why}")),
        }
        None
    }

    /// The environment with the variables of env files, which have less precedence.
    fn variables(
        &mut self,
        outer: &Variables,
        base: &Path,
        given: Vec<PathBuf>,
        named_at: Option<&SourcePosition>,
    ) -> Variables {
        let files = if given.is_empty() { vec![base.join(".env")] } else { given.clone() };
        let mut found = Variables::new();
        for file in files {
            if given.is_empty() && !matches!((self.read)(&file), Ok(Some(_))) {
                continue;
            }
            let Some(text) = self.content(&file, named_at) else { continue };
            let mut known = found.clone();
            known.extend(outer.clone());
            match parse_env_file(&self.shown(&file), &text, &known, &mut self.warnings) {
                Ok(lines) => found.extend(lines.into_iter().filter_map(|(name, value)| Some((name, value?)))),
                Err(problem) => self.problems.push(problem),
            }
        }
        found.extend(outer.clone());
        found
    }

    /// Adds the canonical form of a file to the scope; relative paths are in `base`.
    fn document(
        &mut self,
        path: &Path,
        base: &Path,
        scope: &mut Scope,
        named_at: Option<&SourcePosition>,
    ) -> Option<()> {
        if scope.documents.contains_key(path) {
            return Some(());
        }
        let text = self.content(path, named_at)?;
        let shown = self.shown(path);
        let parsed = parse(&shown, &text, &mut self.budget).and_then(|mut node| {
            interpolate(&mut node, KeyPath::Root, &scope.variables, &mut self.budget, &mut self.warnings)?;
            Ok(node)
        });
        let node = match parsed {
            Ok(node) if node.is_null() => {
                self.fail(&node.at, "", "the file is empty; give at least `services`");
                return None;
            }
            Ok(node) => node,
            Err(problem) => {
                self.problems.push(problem);
                return None;
            }
        };
        let mut canonicalizer =
            Canonicalizer { base, budget: &mut self.budget, problems: &mut self.problems };
        let node = canonicalizer.canonical(node, schema(), KeyPath::Root);
        scope.documents.insert(path.to_owned(), node);
        Some(())
    }

    /// The files merged in this order, with everything they include.
    fn load_files(
        &mut self,
        files: &[PathBuf],
        scope: &mut Scope,
        including: &mut Vec<PathBuf>,
        named_at: Option<&SourcePosition>,
    ) -> YamlNode {
        let mut root = YamlNode::new(YamlValue::Map(YamlMap::new()), &SourcePosition::start_of(""));
        let base = scope.base.clone();
        for file in files {
            if self.document(file, &base, scope, named_at).is_some()
                && let Some(node) = self.extended(file, scope)
            {
                root = merged(root, node, Some(schema()));
            }
        }
        let mut root = completed(root, Some(schema()));
        let included = match &mut root.value {
            YamlValue::Map(map) => map.remove("include"),
            _ => None,
        };
        self.select_services(&mut root);
        self.resolve_environment(&mut root, scope);
        including.extend(files.iter().cloned());
        for (i, include) in included.iter().flat_map(|entry| entry.node.items()).enumerate() {
            self.include(include, i, &mut root, scope, including);
        }
        including.truncate(including.len() - files.len());
        root
    }

    /// Copies everything from one entry of `include`.
    fn include(
        &mut self,
        include: &YamlNode,
        index: usize,
        root: &mut YamlNode,
        scope: &Scope,
        including: &mut Vec<PathBuf>,
    ) {
        let (top, name) = (KeyPath::Root, "include");
        let list = top.key(name);
        let path = list.item(index);
        let paths = |key: &str| -> Vec<PathBuf> {
            let items = include.get(key).map(YamlNode::items).unwrap_or_default();
            items.iter().filter_map(YamlNode::as_text).map(PathBuf::from).collect()
        };
        let files = paths("path");
        let Some(first) = files.first() else {
            self.fail(&include.at, path, "the path of the included file is missing; give `path`");
            return;
        };
        if let Some(repeated) = files.iter().find(|file| including.contains(file)) {
            let message = format!("{} includes itself", self.shown(repeated));
            self.fail(&include.at, path, message);
            return;
        }
        if including.len() >= MAX_CHAIN {
            self.fail(&include.at, path, format!("more than {MAX_CHAIN} files include each other"));
            return;
        }
        let directory = include.get("project_directory").and_then(YamlNode::as_text).map(PathBuf::from);
        let base = directory.or_else(|| first.parent().map(Path::to_owned)).unwrap_or_default();
        let variables = self.variables(&scope.variables, &base, paths("env_file"), Some(&include.at));
        let mut inner = Scope { base, variables, documents: BTreeMap::new(), resolved: BTreeMap::new() };
        let included = self.load_files(&files, &mut inner, including, Some(&include.at));
        for section in SECTIONS {
            self.copy_section(&included, section, root);
        }
    }

    fn copy_section(&mut self, included: &YamlNode, section: &str, root: &mut YamlNode) {
        let (Some(entries), YamlValue::Map(map)) =
            (included.get(section).and_then(YamlNode::as_map), &mut root.value)
        else {
            return;
        };
        let empty = || YamlNode::new(YamlValue::Map(YamlMap::new()), &included.at);
        let target = map
            .entry(section.into())
            .or_insert_with(|| YamlEntry { key_at: included.at.clone(), node: empty() });
        let YamlValue::Map(target) = &mut target.node.value else { return };
        for (name, entry) in entries {
            match target.get(name) {
                None => {
                    target.insert(name.clone(), entry.clone());
                }
                // The same file may be included on two ways.
                Some(known) if known == entry => {}
                Some(known) => {
                    let message =
                        format!("is defined at {} as well; give one of them another name", known.key_at);
                    self.problems.push(ComposeProblem::new(
                        &entry.key_at,
                        format!("{section}.{name}"),
                        message,
                    ));
                }
            }
        }
    }

    /// Removes the services whose profiles are not active.
    fn select_services(&mut self, root: &mut YamlNode) {
        let YamlValue::Map(map) = &mut root.value else { return };
        let Some(YamlValue::Map(services)) = map.get_mut("services").map(|entry| &mut entry.node.value)
        else {
            return;
        };
        services.retain(|name, entry| {
            let profiles = entry.node.get("profiles").map(YamlNode::items).unwrap_or_default();
            let profiles: Vec<String> =
                profiles.iter().filter_map(YamlNode::as_text).map(str::to_owned).collect();
            let is_active = |profile: &String| self.profiles.contains(profile) || self.profiles.contains("*");
            let keep = profiles.is_empty() || profiles.iter().any(is_active);
            if !keep {
                self.disabled.insert(name.to_string(), profiles);
            }
            keep
        });
    }
}

/// An entry of a mapping for a value without a place of its own.
fn entry_at(text: Option<&str>, at: &SourcePosition) -> YamlEntry {
    let node = match text {
        Some(text) => YamlNode::text(text, at),
        None => YamlNode::scalar("", ScalarType::Null, at),
    };
    YamlEntry { key_at: at.clone(), node }
}
