//! Documentation rules: every crate root has an introduction, and README.md or ARCHITECTURE.md names every
//! crate.

use crate::layering::WorkspaceCrate;
use crate::source::SourceFile;

/// Minimum lines of `//!` in a library's root: what it is, what it must never do, where to start.
const INTRODUCTION: usize = 3;

/// Crate roots without an introduction. `libraries` and `programs` are files.
#[must_use]
pub fn roots_without_docs(libraries: &[SourceFile], programs: &[SourceFile]) -> Vec<String> {
    let lines = |source: &SourceFile| source.text.lines().take_while(|line| line.starts_with("//!")).count();
    let short = libraries.iter().filter(|source| lines(source) < INTRODUCTION);
    let silent = programs.iter().filter(|source| lines(source) == 0);
    short
        .chain(silent)
        .map(|source| {
            format!(
                "{} does not open with `//!` lines: what it is, what it must never do, where to start",
                source.path
            )
        })
        .collect()
}

/// Crates that `documents` name neither by their directory (`pkg/log`, or `log` alone) nor by their name.
#[must_use]
pub fn unmentioned(crates: &[WorkspaceCrate], documents: &str) -> Vec<String> {
    let mentions = |name: &str| ["`", "/`"].iter().any(|end| documents.contains(&format!("`{name}{end}")));
    let is_unknown = |member: &&WorkspaceCrate| {
        let alone = member.directory.rsplit('/').next().unwrap_or_default();
        ![member.name.as_str(), member.directory.as_str(), alone].into_iter().any(mentions)
    };
    crates
        .iter()
        .filter(is_unknown)
        .map(|member| {
            format!("neither README.md nor ARCHITECTURE.md names {} ({})", member.directory, member.name)
        })
        .collect()
}

/// Members that do not inherit the workspace's lints.
#[must_use]
pub fn local_lints(manifests: &[SourceFile]) -> Vec<String> {
    let inherits = |source: &&SourceFile| !source.text.contains("[lints]\nworkspace = true");
    let found = manifests.iter().filter(inherits);
    found.map(|source| format!("{} does not inherit the workspace's lints", source.path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assert_none;
    use crate::layering::{crates, metadata};
    use crate::source::{files, root, sample};
    use cargo_metadata::TargetKind;

    fn roots(is_wanted: impl Fn(&TargetKind) -> bool) -> Vec<SourceFile> {
        let metadata = metadata();
        let targets = metadata.workspace_packages().into_iter().flat_map(|package| &package.targets);
        let expected = targets.filter(|target| target.kind.iter().any(&is_wanted));
        expected
            .map(|target| SourceFile {
                path: target.src_path.to_string(),
                text: std::fs::read_to_string(&target.src_path).unwrap(),
            })
            .collect()
    }

    #[test]
    fn crates_introduce_themselves() {
        let libraries = roots(|kind| *kind == TargetKind::Lib);
        let programs = roots(|kind| matches!(kind, TargetKind::Bin | TargetKind::Test | TargetKind::Example));
        assert!(libraries.len() > 10 && !programs.is_empty());
        assert_none(&roots_without_docs(&libraries, &programs));
    }

    #[test]
    fn documents_name_every_crate() {
        let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
        assert_none(&unmentioned(&crates(), &(read("README.md") + &read("ARCHITECTURE.md"))));
    }

    #[test]
    fn members_inherit_lints() {
        let manifests: Vec<SourceFile> =
            files(&["Cargo.toml"]).into_iter().filter(|source| source.path != "Cargo.toml").collect();
        assert!(manifests.len() > 10);
        assert_none(&local_lints(&manifests));
    }

    #[test]
    fn root_without_docs_is_named() {
        let (good, short, none) =
            (sample("a", "//! a\n//!\n//! b\n"), sample("b", "//! b\n"), sample("c", "fn main() {}"));
        assert_eq!(roots_without_docs(&[good.clone(), short.clone()], &[good, short, none]).len(), 2);
    }

    #[test]
    fn an_unmentioned_crate_is_named() {
        let member = |name: &str, directory: &str| WorkspaceCrate {
            name: name.to_owned(),
            directory: directory.to_owned(),
            ..WorkspaceCrate::default()
        };
        let crates =
            [member("warren-log", "pkg/log"), member("warren-sim", "tests/sim"), member("warren-x", "pkg/x")];
        let found = unmentioned(&crates, "| `pkg/log/` | and `sim`, pkg/x |");
        assert_eq!(found, ["neither README.md nor ARCHITECTURE.md names pkg/x (warren-x)"]);
    }

    #[test]
    fn own_lints_are_named() {
        let manifests =
            [sample("a/Cargo.toml", "[lints]\nworkspace = true\n"), sample("b/Cargo.toml", "[package]\n")];
        assert_eq!(local_lints(&manifests), ["b/Cargo.toml does not inherit the workspace's lints"]);
    }
}
