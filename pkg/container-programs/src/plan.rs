//! The protocol of `warren-exec`, on a socket that is its standard input.
//!
//! The agent sends an [`ExecPlan`]: a length as u32, then that many bytes of fields, each a tag as u8, a length as u32,
//! and content. Integers are little-endian. Unlike arguments and an environment, no other process on the machine can
//! read it. Each byte after the plan is the number of a signal for the program. When the agent closes the socket, the
//! program is killed.
//!
//! `warren-exec` answers with lines: see [`ExecReply`].

/// A program to run in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecPlan {
    /// Pid of the container's first process, on the host.
    pub pid: u32,
    /// Path of its cgroups below the mount of each hierarchy, unique. Its first process may be in a child of them.
    pub cgroup: String,
    /// File of the host that becomes the standard input; empty: the null device of the container.
    pub input: Vec<u8>,
    /// Program and arguments, never empty.
    pub arguments: Vec<Vec<u8>>,
    /// `NAME=value`.
    pub environment: Vec<Vec<u8>>,
    /// Absolute path in the container.
    pub directory: Vec<u8>,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Capabilities.
    pub capabilities: CapabilityMasks,
    /// Whether to set no_new_privs.
    pub no_new_privileges: bool,
    /// Name of the AppArmor profile; empty: none.
    pub apparmor_profile: Vec<u8>,
    /// Limits for setrlimit(2): resource, soft, hard.
    pub rlimits: Vec<(u32, u64, u64)>,
    /// Seccomp filters, installed in this order: each the instructions of a classic BPF program.
    pub seccomp_filters: Vec<Vec<u8>>,
    /// The id on the host of id 0 of the container, if it has a user namespace of its own.
    pub first_id: Option<u32>,
}

/// Capability sets, one bit per capability number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CapabilityMasks {
    /// Bounding set.
    pub bounding: u64,
    /// Effective set.
    pub effective: u64,
    /// Permitted set.
    pub permitted: u64,
    /// Inheritable set.
    pub inheritable: u64,
    /// Ambient set.
    pub ambient: u64,
}

/// A message of `warren-exec`, in one line: [`ExecReply::Started`] and [`ExecReply::Exited`], or
/// [`ExecReply::Failed`] alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecReply {
    /// `started PID`: the program runs, with this process id on the host. It leads a session.
    Started(u32),
    /// `exited CODE`: exit status; 128 + signal number when a signal ended it.
    Exited(u32),
    /// `failed FAILURE REASON`: the program could not be started.
    Failed(ExecFailure, String),
}

/// What is wrong with a program that could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecFailure {
    /// The container has ended.
    Ended,
    /// The command is missing or cannot be executed.
    Command,
    /// The directory is missing or cannot be entered.
    Directory,
    /// Anything else.
    Other,
}

const PID: u8 = 1;
const CGROUP: u8 = 2;
const INPUT: u8 = 3;
const ARGUMENT: u8 = 4;
const VARIABLE: u8 = 5;
const DIRECTORY: u8 = 6;
const UID: u8 = 7;
const GID: u8 = 8;
const GROUP: u8 = 9;
const CAPABILITIES: u8 = 10;
const NO_NEW_PRIVILEGES: u8 = 11;
const LIMIT: u8 = 12;
const FILTER: u8 = 13;
const FIRST_ID: u8 = 14;
const APPARMOR: u8 = 15;

impl ExecPlan {
    /// Encodes the plan, prefixed with its length.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let mut put = |tag: u8, content: &[u8]| {
            body.push(tag);
            body.extend(u32::try_from(content.len()).unwrap_or(u32::MAX).to_le_bytes());
            body.extend(content);
        };
        let CapabilityMasks { bounding, effective, permitted, inheritable, ambient } = self.capabilities;
        put(PID, &self.pid.to_le_bytes());
        put(CGROUP, self.cgroup.as_bytes());
        put(INPUT, &self.input);
        self.arguments.iter().for_each(|argument| put(ARGUMENT, argument));
        self.environment.iter().for_each(|variable| put(VARIABLE, variable));
        put(DIRECTORY, &self.directory);
        put(UID, &self.uid.to_le_bytes());
        put(GID, &self.gid.to_le_bytes());
        self.groups.iter().for_each(|group| put(GROUP, &group.to_le_bytes()));
        let sets = [bounding, effective, permitted, inheritable, ambient].map(u64::to_le_bytes);
        put(CAPABILITIES, sets.as_flattened());
        if self.no_new_privileges {
            put(NO_NEW_PRIVILEGES, &[]);
        }
        for (resource, soft, hard) in &self.rlimits {
            put(LIMIT, &[&resource.to_le_bytes()[..], &soft.to_le_bytes(), &hard.to_le_bytes()].concat());
        }
        self.seccomp_filters.iter().for_each(|filter| put(FILTER, filter));
        self.first_id.iter().for_each(|id| put(FIRST_ID, &id.to_le_bytes()));
        if !self.apparmor_profile.is_empty() {
            put(APPARMOR, &self.apparmor_profile);
        }
        let mut sent = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
        sent.extend(body);
        sent
    }

    /// Decodes what follows the length; `None` when it is not a plan.
    #[must_use]
    pub fn decode(mut body: &[u8]) -> Option<ExecPlan> {
        let mut plan = ExecPlan::default();
        while let Some((tag, rest)) = body.split_first() {
            let (length, rest) = rest.split_first_chunk()?;
            let (content, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            body = rest;
            match *tag {
                PID => plan.pid = decode_u32(content)?,
                CGROUP => plan.cgroup = String::from_utf8(content.to_vec()).ok()?,
                INPUT => plan.input = content.to_vec(),
                ARGUMENT => plan.arguments.push(content.to_vec()),
                VARIABLE => plan.environment.push(content.to_vec()),
                DIRECTORY => plan.directory = content.to_vec(),
                UID => plan.uid = decode_u32(content)?,
                GID => plan.gid = decode_u32(content)?,
                GROUP => plan.groups.push(decode_u32(content)?),
                CAPABILITIES => {
                    let sets: Option<Vec<u64>> = content.chunks(8).map(decode_u64).collect();
                    let [bounding, effective, permitted, inheritable, ambient] = sets?[..] else {
                        return None;
                    };
                    plan.capabilities =
                        CapabilityMasks { bounding, effective, permitted, inheritable, ambient };
                }
                NO_NEW_PRIVILEGES => plan.no_new_privileges = true,
                LIMIT => {
                    let (resource, bounds) = content.split_at_checked(4)?;
                    let (soft, hard) = bounds.split_at_checked(8)?;
                    plan.rlimits.push((decode_u32(resource)?, decode_u64(soft)?, decode_u64(hard)?));
                }
                FILTER => plan.seccomp_filters.push(content.to_vec()),
                FIRST_ID => plan.first_id = Some(decode_u32(content)?),
                APPARMOR => plan.apparmor_profile = content.to_vec(),
                _ => return None,
            }
        }
        let is_whole = plan.pid > 0 && !plan.arguments.is_empty() && !plan.cgroup.is_empty();
        is_whole.then_some(plan)
    }
}

fn decode_u32(content: &[u8]) -> Option<u32> {
    content.try_into().ok().map(u32::from_le_bytes)
}

fn decode_u64(content: &[u8]) -> Option<u64> {
    content.try_into().ok().map(u64::from_le_bytes)
}

impl ExecReply {
    /// The line, without a line feed.
    #[must_use]
    pub fn to_line(&self) -> String {
        match self {
            Self::Started(pid) => format!("started {pid}"),
            Self::Exited(code) => format!("exited {code}"),
            Self::Failed(failure, reason) => {
                format!("failed {} {}", failure.as_str(), reason.replace('\n', " "))
            }
        }
    }

    /// Parses a line; `None` when it is invalid.
    #[must_use]
    pub fn parse(line: &str) -> Option<ExecReply> {
        let (kind, rest) = line.split_once(' ')?;
        match kind {
            "started" => rest.parse().ok().map(Self::Started),
            "exited" => rest.parse().ok().map(Self::Exited),
            "failed" => {
                let (failure, reason) = rest.split_once(' ')?;
                Some(Self::Failed(ExecFailure::parse(failure)?, reason.to_owned()))
            }
            _ => None,
        }
    }
}

impl ExecFailure {
    const ALL: [Self; 4] = [Self::Ended, Self::Command, Self::Directory, Self::Other];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Command => "command",
            Self::Directory => "directory",
            Self::Other => "other",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|failure| failure.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> ExecPlan {
        ExecPlan {
            pid: 7,
            cgroup: "/warren/n/t-1".into(),
            input: b"/proc/1/fd/7".to_vec(),
            arguments: vec![b"sh".to_vec(), b"-c".to_vec(), Vec::new()],
            environment: vec![b"A=b\n\xff".to_vec()],
            directory: b"/".to_vec(),
            uid: 1000,
            gid: u32::MAX,
            groups: vec![1, 2],
            capabilities: CapabilityMasks {
                bounding: 1,
                effective: 2,
                permitted: 3,
                inheritable: 4,
                ambient: 5,
            },
            no_new_privileges: true,
            apparmor_profile: b"warren-default".to_vec(),
            rlimits: vec![(7, 1, u64::MAX)],
            seccomp_filters: vec![vec![1; 16], vec![2; 8]],
            first_id: Some(1_000_000),
        }
    }

    #[test]
    fn plan_round_trips() {
        let sent = plan().encode();
        let (length, body) = sent.split_first_chunk().unwrap();
        assert_eq!(u32::from_le_bytes(*length) as usize, body.len());
        assert_eq!(ExecPlan::decode(body), Some(plan()));
        for end in 0..body.len() {
            // A truncated plan is invalid, or differs.
            assert_ne!(ExecPlan::decode(&body[..end]), Some(plan()), "{end}");
        }
        assert_eq!(ExecPlan::decode(&[99, 0, 0, 0, 0]), None);
    }

    #[test]
    fn reply_is_one_line() {
        let failures = ExecFailure::ALL.map(|failure| ExecReply::Failed(failure, "no such file: x".into()));
        for reply in failures.into_iter().chain([ExecReply::Started(7), ExecReply::Exited(3)]) {
            assert_eq!(ExecReply::parse(&reply.to_line()), Some(reply));
        }
        assert_eq!(ExecReply::Failed(ExecFailure::Other, "a\nb".into()).to_line(), "failed other a b");
        for invalid in ["exited x", "failed", "failed unknown x", "started -1", ""] {
            assert_eq!(ExecReply::parse(invalid), None, "{invalid}");
        }
    }
}
