//! Invalid input: the path of a field and one sentence about it.

use std::fmt;

/// One problem of one field. `path` is dotted from the root of the request, with list indexes in brackets:
/// `spec.ports[1].hostPort`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Path of the field in the request, in the file format's camelCase.
    pub path: String,
    /// What is invalid and what is expected.
    pub message: String,
}

/// All problems of an input, in field order. Never empty when returned as an error.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Violations(pub Vec<Violation>);

impl Violation {
    /// A violation of the field at `path`.
    pub fn new(path: impl Into<String>, message: impl fmt::Display) -> Self {
        Self { path: path.into(), message: message.to_string() }
    }

    /// The same violation with its path prefixed with `parent`.
    pub fn with_parent(mut self, parent: &str) -> Self {
        let joint = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{parent}{joint}{}", self.path);
        self
    }
}

impl Violations {
    /// Adds a violation of the field at `path`.
    pub fn add(&mut self, path: impl Into<String>, message: impl fmt::Display) {
        self.0.push(Violation::new(path, message));
    }

    /// Adds all of `inner`, whose paths are relative to `parent`.
    pub fn nest(&mut self, parent: &str, inner: Violations) {
        self.0.extend(inner.0.into_iter().map(|v| v.with_parent(parent)));
    }

    /// `Ok(value)` if there are no violations.
    pub fn into_result<T>(self, value: T) -> Result<T, Violations> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl From<Violation> for Violations {
    fn from(one: Violation) -> Self {
        Self(vec![one])
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, v) in self.0.iter().enumerate() {
            write!(f, "{}{v}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for Violations {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_nested() {
        let mut ports = Violations::default();
        ports.add("[1].hostPort", "0 is not a port");
        let mut spec = Violations::default();
        spec.nest("ports", ports);
        let mut request = Violations::default();
        request.nest("spec", spec);
        assert_eq!(request.to_string(), "spec.ports[1].hostPort: 0 is not a port");
        assert_eq!(Violation::new("", "is no spec").to_string(), "is no spec");
    }
}
