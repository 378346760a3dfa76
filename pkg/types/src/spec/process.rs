//! Programs in containers, and hooks: programs that the node runs in the container of a task when it starts and stops.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::check::check_count;
use super::storage::is_normalized_absolute;
use crate::Violations;

/// How many hooks of each kind a task may have.
pub const MAX_HOOKS: usize = 16;

/// One environment variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvVar {
    /// Without `=` and NUL, not empty.
    pub name: String,
    /// Without NUL.
    pub value: String,
}

/// A program that runs beside the task's own, with its environment, user and directory except as given here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LifecycleHook {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Over the environment of the container; each name once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Working directory, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// `user[:group]`, names from the container's own files or numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

impl LifecycleHook {
    /// A hook of this command.
    pub fn new(command: Vec<String>) -> Self {
        Self { command, env: Vec::new(), workdir: None, user: None }
    }

    fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        if self.command.first().is_none_or(String::is_empty) {
            wrong.add("command", "is empty; give a program and its arguments");
        }
        if self.command.iter().any(|word| word.contains('\0')) {
            wrong.add("command", "a NUL byte cannot be passed to a program");
        }
        validate_env(&self.env, &mut wrong);
        validate_workdir(self.workdir.as_deref(), &mut wrong);
        validate_user(self.user.as_deref(), &mut wrong);
        wrong
    }
}

/// Adds the violations of the hooks of one kind.
pub(super) fn validate_hooks(field: &str, hooks: &[LifecycleHook], wrong: &mut Violations) {
    check_count(field, hooks.len(), MAX_HOOKS, wrong);
    for (i, hook) in hooks.iter().enumerate() {
        wrong.nest(&format!("{field}[{i}]"), hook.validate());
    }
}

/// Adds the violations of environment variables, at `env`.
pub(super) fn validate_env(env: &[EnvVar], wrong: &mut Violations) {
    let mut seen = BTreeSet::new();
    for (i, EnvVar { name, value }) in env.iter().enumerate() {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            wrong.add(format!("env[{i}].name"), format!("{name:?} is not a variable's name"));
        }
        if !seen.insert(name) {
            wrong.add(format!("env[{i}].name"), format!("{name} is given twice"));
        }
    }
}

/// Adds the violation of a working directory, at `workdir`.
pub(super) fn validate_workdir(workdir: Option<&str>, wrong: &mut Violations) {
    if let Some(workdir) = workdir.filter(|path| !is_normalized_absolute(path)) {
        wrong.add("workdir", format!("{workdir:?} is not an absolute path without '..'"));
    }
}

/// Adds the violation of `user[:group]`, at `user`.
pub(super) fn validate_user(user: Option<&str>, wrong: &mut Violations) {
    let Some(user) = user else { return };
    let (name, group) = user.split_once(':').unwrap_or((user, "0"));
    if !is_account(name) || !is_account(group) {
        wrong.add("user", format!("{user:?} is not user[:group], by name or number"));
    }
}

/// Whether it is the name or number of a user or group.
pub(super) fn is_account(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-$".contains(&b);
    (1..=64).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with('-')
}
