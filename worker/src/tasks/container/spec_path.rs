//! Maps fields of a container spec to fields of the task's spec, for error messages.

use warren_runtime::Error;
use warren_types::spec::TaskSpec;

/// Rewrites the field of an error. The container's mounts after the task's own are its secrets and then its
/// configs.
pub(in crate::tasks) fn with_spec_path(error: Error, spec: &TaskSpec) -> Error {
    let Error::InvalidSpec { field, reason } = error else { return error };
    let numbered = field.strip_prefix("mounts[").and_then(|rest| rest.split_once(']'));
    let further = numbered.and_then(|(number, rest)| {
        let number = number.parse::<usize>().ok()?.checked_sub(spec.mounts.len())?;
        Some(match number.checked_sub(spec.secrets.len()) {
            None => format!("secrets[{number}]{rest}"),
            Some(number) => format!("configs[{number}]{rest}"),
        })
    });
    Error::InvalidSpec { field: further.unwrap_or(field), reason }
}

/// The task field of a container field: `shm_size` is `task.shmSize`. `None` for fields that the node adds.
pub(in crate::tasks) fn spec_path(field: &str) -> Option<String> {
    const NODE_FIELDS: [&str; 7] = ["files", "log", "stdin", "init", "labels", "assignment", "network"];
    let first = field.split(['.', '[']).next().unwrap_or_default();
    if NODE_FIELDS.contains(&first) {
        return None;
    }
    let (first, rest) = field.split_at(first.len());
    let first = if first == "read_only_root" { "read_only" } else { first };
    let mut path = "task.".to_string();
    let mut upper = false;
    for letter in first.chars() {
        match letter {
            '_' => upper = true,
            _ if std::mem::take(&mut upper) => path.push(letter.to_ascii_uppercase()),
            _ => path.push(letter),
        }
    }
    Some(path + rest)
}

#[cfg(test)]
mod tests {
    use warren_types::spec::{Mount, MountSource, SecretObjectMount};

    use super::*;

    #[test]
    fn fields_map_to_spec_paths() {
        for (field, expected) in [
            ("user", Some("task.user")),
            ("shm_size", Some("task.shmSize")),
            ("oom_score_adj", Some("task.oomScoreAdj")),
            ("cap_add[2]", Some("task.capAdd[2]")),
            ("sysctls[\"net.a_b\"]", Some("task.sysctls[\"net.a_b\"]")),
            ("limits.memory", Some("task.limits.memory")),
            ("log.dir", None),
            ("files[0].source", None),
        ] {
            assert_eq!(spec_path(field).as_deref(), expected, "{field}");
        }
    }

    #[test]
    fn trailing_mounts_map_to_secrets_and_configs() {
        let content = |name: &str| SecretObjectMount::new(name.parse().unwrap());
        let source = MountSource::Tmpfs { size: None, mode: None, exec: false };
        let spec = TaskSpec {
            mounts: vec![Mount { target: "/tmp".into(), source, read_only: false }],
            secrets: vec![content("db"), content("key")],
            configs: vec![content("nginx")],
            ..TaskSpec::new("demo:1".parse().unwrap())
        };
        for (field, expected) in [
            ("mounts[0].target", "mounts[0].target"),
            ("mounts[1].target", "secrets[0].target"),
            ("mounts[2].target", "secrets[1].target"),
            ("mounts[3]", "configs[0]"),
            ("mounts", "mounts"),
            ("user", "user"),
        ] {
            let refused = |field: &str| Error::InvalidSpec { field: field.into(), reason: "no".into() };
            assert_eq!(
                with_spec_path(refused(field), &spec).to_string(),
                refused(expected).to_string(),
                "{field}"
            );
        }
    }
}
