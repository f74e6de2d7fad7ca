//! The next step after an inspection: a command to run, or a setting to paste if that is the
//! remedy.

use lowtide_analysis::growth::is_taken_back;
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::growth::{Growth, GrowthCourse};
use lowtide_model::inspection::{Inspection, Linkage, WalkedHeap};
use lowtide_model::ledger::{Owner, State, WalkedRuntime};
use lowtide_model::remedy::{Remedy, RemedyKind};
use lowtide_model::verdict::VerdictKind;
use lowtide_probe::sockets::Listening;
use lowtide_report::divide::divide_growth;

use super::service::{Service, Starter};
use crate::shell::{PLACEHOLDER, copyable, quoted};

/// Returns the commands to run next, the most useful one first.
pub(super) fn next(found: &Inspection, service: &Service) -> String {
    let pid = found.observation.pid;
    let leaks = format!("lowtide leaks {pid} --duration 10m");
    let runtimes = &found.observation.runtimes;
    match found.verdict.kind {
        VerdictKind::Hoard | VerdictKind::Fragmentation if is_release_the_remedy(found) => {
            format!("lowtide release {pid}\n      {}", study(found, service))
        }
        VerdictKind::Hoard
        | VerdictKind::Locked
        | VerdictKind::Cached
        | VerdictKind::Fragmentation => of_musl(found).unwrap_or_else(|| study(found, service)),
        VerdictKind::Leak => leaks,
        VerdictKind::Growing => found
            .growth
            .as_ref()
            .and_then(|growth| divide_growth(growth, runtimes, pid))
            .unwrap_or(leaks),
        VerdictKind::Live
        | VerdictKind::OutsideHeap
        | VerdictKind::Runtime
        | VerdictKind::Inconclusive => match &found.growth {
            Some(growth) if growth.course == GrowthCourse::Level || is_taken_back(growth) => {
                match is_taken_back(growth) || grew_beside(growth) {
                    true => divide_growth(growth, runtimes, pid).unwrap_or(leaks),
                    false if found.verdict.kind == VerdictKind::Runtime && has_advice(found) => {
                        "the advice above, if that is too much: it did not grow while it was watched"
                            .to_owned()
                    }
                    false => "nothing to do: it did not grow while it was watched".to_owned(),
                }
            }
            // Also if the watch was too short for a course: a longer one is a search for leaks.
            Some(_) => leaks,
            None if has_collection(found) => {
                format!("lowtide release --collect {pid}     (collects first, as jcmd GC.run does)")
            }
            None if is_little_free(found) => {
                format!("nothing to release; does it grow? lowtide inspect --watch 60s {pid}")
            }
            None => format!("lowtide inspect --watch 60s {pid}     (does it grow?)"),
        },
    }
}

/// Returns whether a heap was walked, and neither a release nor another remedy with a prediction
/// gains anything.
fn is_little_free(found: &Inspection) -> bool {
    let has_gain = found.remedies.iter().any(|remedy| remedy.predicted_bytes.is_some());
    found.observation.heap.is_some() && !has_gain && found.verdict.kind != VerdictKind::Inconclusive
}

/// Returns whether memory grew that the RSS of the process does not count.
fn grew_beside(growth: &Growth) -> bool {
    let rises = [
        growth.page_tables_rise(),
        growth.hugetlb_rise(),
        growth.open_memory_rise(),
        growth.descendants_rise(),
    ];
    rises.iter().any(Option::is_some) || !growth.counts.is_empty()
}

/// Returns whether a collection of the runtime, which lowtide can ask for, returns memory.
fn has_collection(found: &Inspection) -> bool {
    const COLLECTED: [&str; 2] = ["hotspot/g1", "hotspot/shenandoah"];
    let is_collected = |row: &String| COLLECTED.contains(&row.as_str());
    found.remedies.iter().any(|remedy| remedy.row.as_ref().is_some_and(is_collected))
}

/// Returns whether there is advice for the memory that a runtime, or an allocator that is not
/// walked, manages.
fn has_advice(found: &Inspection) -> bool {
    found.remedies.iter().any(|remedy| remedy.kind == RemedyKind::Runtime)
}

/// Returns whether a release returns a tenth of the memory of the process or more, and at least as
/// much as a purge by the program itself.
fn is_release_the_remedy(found: &Inspection) -> bool {
    let most = |kind: RemedyKind| {
        let of_kind = found.remedies.iter().filter(|remedy| remedy.kind == kind);
        of_kind.map(|remedy| remedy.predicted_bytes.unwrap_or(0)).max()
    };
    let purge_bytes = most(RemedyKind::Purge).unwrap_or(0);
    let is_worth = |release_bytes: u64| match found.verdict.kind {
        VerdictKind::Hoard => true,
        _ => release_bytes >= found.observation.rss_bytes / 10,
    };
    most(RemedyKind::Release).is_some_and(|bytes| bytes >= purge_bytes && is_worth(bytes))
}

/// Returns the next step for a program of musl whose memory is not released: musl has no setting.
fn of_musl(found: &Inspection) -> Option<String> {
    let has_release = found.remedies.iter().any(|remedy| remedy.kind == RemedyKind::Release);
    let sentence = "nothing to run: no setting, policy or release returns this memory of musl; see the advice above";
    (is_of_musl(found) && !has_release).then(|| sentence.to_owned())
}

fn is_of_musl(found: &Inspection) -> bool {
    let allocator = found.observation.allocator.as_ref();
    allocator.is_some_and(|allocator| allocator.kind == AllocatorKind::Musl)
}

/// Returns a study of the recommended settings beside other allocators.
fn study(found: &Inspection, service: &Service) -> String {
    if is_fragmented_by_cpython(found) {
        // Another malloc does not change the memory that CPython keeps in its own arenas.
        let words = ["glibc", "mimalloc"]
            .map(|allocator| format!("-t '{allocator}/no-arenas: PYTHONMALLOC=malloc'"));
        return command(format!("lowtide study -a glibc {}", words.join(" ")), found, service);
    }
    let most = found.observation.heaps.iter().max_by_key(|heap| heap.fragmented_bytes);
    if found.verdict.kind == VerdictKind::Fragmentation
        && most.is_some_and(WalkedHeap::is_of_cpython)
    {
        let words = "-a glibc -t 'glibc/pymalloc: PYTHONMALLOC=pymalloc' -t 'jemalloc/no-arenas: PYTHONMALLOC=malloc'";
        return command(format!("lowtide study {words}"), found, service);
    }
    // The allocators of a study are libraries for glibc.
    if is_compiled_in(found) || is_of_musl(found) {
        // No preloaded allocator replaces it, but it reads its settings.
        let settings = found.remedies.iter().filter_map(|remedy| remedy.setting.as_ref());
        let own = settings.take(1);
        let treatments = own.map(|s| format!(" -t 'own/setting: {}={}'", s.name, s.value));
        let treatments = treatments.collect::<String>();
        let study = format!("lowtide study -a own{treatments} -p none,adaptive");
        return command(study, found, service);
    }
    let advised: Vec<String> =
        found.remedies.iter().filter_map(|remedy| treatment(remedy, found)).collect();
    let (usual, policies) = match found.verdict.kind {
        // Another allocator may leave memory that a release returns.
        VerdictKind::Fragmentation => (&[BACKGROUND_THREAD][..], " -p none,adaptive"),
        // No setting returns it, but a policy does.
        VerdictKind::Hoard if advised.is_empty() => (&[][..], " -p none,adaptive"),
        _ => (&[][..], ""),
    };
    let more = usual.iter().map(|usual| (*usual).to_owned());
    let more: Vec<String> = more.filter(|usual| !advised.contains(usual)).collect();
    let treatments = advised.iter().chain(&more).map(|treatment| format!(" -t {treatment}"));
    let treatments = treatments.collect::<String>();
    let study = format!("lowtide study -a glibc,jemalloc,mimalloc{treatments}{policies}");
    command(study, found, service)
}

/// Returns whether the program contains the allocator that it uses.
fn is_compiled_in(found: &Inspection) -> bool {
    let allocator = found.observation.allocator.as_ref();
    allocator.is_some_and(|allocator| allocator.linkage == Some(Linkage::Static))
}

fn is_fragmented_by_cpython(found: &Inspection) -> bool {
    let ledger = &found.observation.ledger;
    found.verdict.kind == VerdictKind::Fragmentation
        && ledger.bytes_of(WalkedRuntime::CPython, State::Free) > ledger.bytes(Owner::Fragmented)
}

/// Returns a study with its load and the command of the service.
fn command(study: String, found: &Inspection, service: &Service) -> String {
    let mut words = vec![study];
    let mut remark = String::new();
    // A process that listens must be stopped first, and then has no variables to take.
    if !service.settings.is_empty() && service.listening.is_none() {
        words.push(format!("--env-from {}", found.observation.pid));
    }
    if let Some(place) = &service.listening {
        words.push(format!("--ready tcp:{place}"));
        let (load, port) = (load(found, place), place.port);
        words.push(format!("--load {}", quoted(&load)));
        let is_yours = load == YOUR_LOAD;
        let what = if is_yours { "\n      (YOUR LOAD: a client of its protocol)" } else { "" };
        remark = format!(
            "{what}\n      (port {port} is in use while process {} runs: stop it first, or give the command another \
             port)",
            found.observation.pid
        );
    }
    if service.listening.is_some() && !service.settings.is_empty() {
        let names = service.settings.iter().take(MAX_SETTINGS).map(String::as_str);
        remark += &format!(
            "\n      (it was started with {}: put them before the command, as in env NAME=VALUE)",
            names.collect::<Vec<_>>().join(", ")
        );
    }
    let words = words.join(" ");
    let Some(command) = service.command.as_deref().and_then(copyable) else {
        return format!(
            "{words} -- {PLACEHOLDER}{remark}\n      ({PLACEHOLDER}: the command that starts it)"
        );
    };
    if let Some(place) = &service.elsewhere {
        remark += &format!(
            "\n      (it runs {place}: run the study there, where these paths lead to its files)"
        );
    }
    let Some(directory) = &service.directory else {
        return format!("{words} -- {command}{remark}");
    };
    let directory = copyable(std::slice::from_ref(directory)).unwrap_or_else(|| {
        remark += "\n      (DIR: its working directory)";
        "DIR".to_owned()
    });
    format!("cd {directory} && {words} -- {command}{remark}")
}

/// Returns the treatment of a study that tries a remedy.
fn treatment(remedy: &Remedy, found: &Inspection) -> Option<String> {
    let heaps = || found.observation.heaps.iter();
    match remedy.kind {
        RemedyKind::ArenaMax => Some("glibc/arena_max=2".to_owned()),
        RemedyKind::TrimThreshold => Some("glibc/trim_threshold".to_owned()),
        RemedyKind::Purge => {
            with_setting("purge", remedy, heaps().max_by_key(|heap| heap.prediction.purge_bytes))
        }
        RemedyKind::ThreadCaches => {
            with_setting("no-caches", remedy, heaps().max_by_key(|heap| heap.cached_bytes))
        }
        RemedyKind::Release
        | RemedyKind::MallocTrim
        | RemedyKind::CloseConnections
        | RemedyKind::Allocator
        | RemedyKind::Runtime
        | RemedyKind::HugePages
        | RemedyKind::Fork => None,
    }
}

/// Returns the treatment with the setting of a remedy for a heap, under the allocator that reads
/// it.
fn with_setting(name: &str, remedy: &Remedy, heap: Option<&WalkedHeap>) -> Option<String> {
    let (setting, heap) = (remedy.setting.as_ref()?, heap?);
    let allocator = match (&heap.allocator, &heap.library) {
        // A library keeps its own allocator, independently of the one that serves `malloc`.
        (_, Some(_)) => "glibc",
        (AllocatorKind::Jemalloc, None) if remedy.kind == RemedyKind::Purge => {
            return Some(BACKGROUND_THREAD.to_owned());
        }
        (AllocatorKind::Gperftools, None) => "tcmalloc",
        // The mimalloc of a study is a newer one, in which the setting has another name.
        (AllocatorKind::Mimalloc, None) if setting.name == "MIMALLOC_DECOMMIT_DELAY" => {
            return None;
        }
        (
            kind @ (AllocatorKind::Glibc | AllocatorKind::Jemalloc | AllocatorKind::Mimalloc),
            None,
        ) => kind.name(),
        _ => return None,
    };
    Some(format!("'{allocator}/{name}: {}={}'", setting.name, setting.value))
}

/// The treatment of a study under jemalloc that returns free memory while the program is idle.
const BACKGROUND_THREAD: &str = "jemalloc/background_thread";
/// Maximum number of variables that are named.
const MAX_SETTINGS: usize = 8;
/// Stands for a load that the user has to write.
const YOUR_LOAD: &str = "YOUR LOAD";

/// Returns a load to start with.
fn load(found: &Inspection, place: &Listening) -> String {
    let has = |name: &str| found.observation.runtimes.iter().any(|runtime| runtime.name == name);
    let Listening { address, port } = place;
    if has("PostgreSQL") {
        format!("pgbench -h {address} -p {port} -c 8 -T 30 postgres")
    } else if has("InnoDB") {
        format!("mysqlslap -h {address} -P {port} --auto-generate-sql -c 8 -i 20")
    } else if NOT_HTTP.contains(port) || speaks_another_protocol(found) {
        YOUR_LOAD.to_owned()
    } else {
        format!("lowtide load http://{place}/ -n 10000 -c 32")
    }
}

/// Returns whether the program is a server of a protocol other than HTTP, whatever its port is.
fn speaks_another_protocol(found: &Inspection) -> bool {
    const PROGRAMS: [&str; 16] = [
        "redis-server",
        "valkey-server",
        "keydb-server",
        "memcached",
        "mongod",
        "mosquitto",
        "named",
        "unbound",
        "slapd",
        "dovecot",
        "sshd",
        "vsftpd",
        "smbd",
        "turnserver",
        "beanstalkd",
        "nsd",
    ];
    let first = found.observation.command.first().map(String::as_str).unwrap_or_default();
    // A title can follow the name: `redis-server *:6379`.
    let path = first.split_whitespace().next().unwrap_or_default();
    PROGRAMS.contains(&path.rsplit('/').next().unwrap_or_default())
}

/// Registered ports of services that do not speak HTTP (IANA's list): FTP, SSH, SMTP, DNS, LDAP,
/// mail, SMB, SQL servers, ZooKeeper, MQTT, AMQP, Cassandra, Kafka, memcached, Redis, MongoDB.
const NOT_HTTP: [u16; 27] = [
    21, 22, 25, 53, 110, 143, 389, 445, 465, 587, 636, 853, 993, 995, 1433, 1521, 1883, 2181, 3306,
    5432, 5672, 6379, 8883, 9042, 9092, 11211, 27017,
];

/// Returns whether a remedy is worth a change in production: it gains at least half of what can be
/// gained, and a twentieth of RSS. A remedy without a prediction has preconditions of its own.
fn is_worth_it(remedy: &Remedy, found: &Inspection) -> bool {
    let ledger = &found.observation.ledger;
    let Some(bytes) = remedy.predicted_bytes else { return true };
    let predicted = found.remedies.iter().filter_map(|remedy| remedy.predicted_bytes);
    let free_in_cpython = ledger.bytes_of(WalkedRuntime::CPython, State::Free);
    let most = predicted.chain([ledger.bytes(Owner::Fragmented), free_in_cpython]).max();
    bytes >= most.unwrap_or(0) / 2 && bytes >= ledger.total() / 20
}

/// Returns the settings to paste into production if a setting is the remedy; empty otherwise. They
/// are written for what starts the process.
pub(super) fn to_paste(found: &Inspection, service: &Service) -> String {
    let settings: Vec<(&str, &str)> = found
        .remedies
        .iter()
        .filter(|remedy| is_worth_it(remedy, found))
        .filter_map(|remedy| remedy.setting.as_ref())
        .map(|setting| (setting.name.as_str(), setting.value.as_str()))
        .collect();
    let is_remedy = matches!(
        found.verdict.kind,
        VerdictKind::Hoard | VerdictKind::Locked | VerdictKind::Cached | VerdictKind::Fragmentation
    );
    if settings.is_empty() || !is_remedy {
        return String::new();
    }
    let each = |of: &dyn Fn(&str, &str) -> String, between: &str| -> String {
        settings.iter().map(|(name, value)| of(name, value)).collect::<Vec<String>>().join(between)
    };
    let line = match &service.starter {
        Starter::Unit(unit) => {
            let directory = quoted(&format!("/etc/systemd/system/{unit}.d"));
            let lines = each(&|name, value| format!("Environment={name}={value}"), "\\n");
            format!(
                "mkdir -p {directory} && printf '[Service]\\n{lines}\\n' > {directory}/malloc.conf && \
                 systemctl daemon-reload"
            )
        }
        Starter::Kubernetes => {
            let variables =
                &|name: &str, value: &str| format!("{{name: {name}, value: \"{value}\"}}");
            format!(
                "env: [{}]     (of the container, in its pod's template)",
                each(variables, ", ")
            )
        }
        Starter::Container => {
            let variables = each(&|name, value| format!("{name}={value}"), " ");
            format!("ENV {variables}     (in its Dockerfile)")
        }
        Starter::Unknown => {
            let variables = each(&|name, value| format!("{name}={}", quoted(value)), " ");
            format!("env {variables} CMD     (CMD: the command that starts it)")
        }
    };
    format!("to make it permanent, after the study has verified it:\n      {line}\n")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use lowtide_analysis::diagnose::diagnose;
    use lowtide_model::growth::{Growth, GrowthPart};
    use lowtide_model::inspection::{Allocator, HeapPrediction};
    use lowtide_model::ledger::Ledger;
    use lowtide_model::remedy::Setting;

    pub(in crate::verbs) fn found(
        kind: VerdictKind,
        remedies: &[(RemedyKind, Option<(&str, &str)>)],
    ) -> Inspection {
        let remedy = |(kind, setting): &(RemedyKind, Option<(&str, &str)>)| Remedy {
            setting: setting
                .map(|(name, value)| Setting { name: name.into(), value: value.into() }),
            ..Remedy::new(*kind, None, String::new())
        };
        let mut found = diagnose(crate::tui::tests::found(0.02, 400, 280));
        found.observation.pid = 7;
        found.observation.runtimes.clear();
        found.verdict.kind = kind;
        found.remedies = remedies.iter().map(remedy).collect();
        found
    }

    pub(in crate::verbs) fn server() -> Service {
        Service {
            command: Some(vec!["ruby".into(), "app.rb".into(), "it's".into()]),
            directory: Some("/srv/my app".into()),
            listening: Some(Listening { address: "127.0.0.1".into(), port: 9292 }),
            starter: Starter::Unit("app.service".into()),
            settings: Vec::new(),
            elsewhere: None,
        }
    }

    #[test]
    fn the_suggested_study_of_a_server_is_complete_and_tries_the_remedies() {
        let found =
            found(VerdictKind::Hoard, &[(RemedyKind::ArenaMax, Some(("MALLOC_ARENA_MAX", "2")))]);
        assert_eq!(
            next(&found, &server()),
            "cd '/srv/my app' && lowtide study -a glibc,jemalloc,mimalloc -t glibc/arena_max=2 --ready \
             tcp:127.0.0.1:9292 --load 'lowtide load http://127.0.0.1:9292/ -n 10000 -c 32' -- ruby app.rb \
             'it'\\''s'\n      (port 9292 is in use while process 7 runs: stop it first, or give the command \
             another port)"
        );
    }

    #[test]
    fn a_watch_does_not_suggest_itself() {
        let part = |owner: &str, mib: i64| GrowthPart {
            owner: owner.to_owned(),
            name: None,
            count: None,
            more: None,
            kept: false,
            free: false,
            bytes: mib << 20,
            bytes_per_hour: mib << 30,
            bound_bytes: None,
        };
        let growth = |rss_mib: [u64; 2], by: Vec<GrowthPart>| Growth {
            rss_bytes: rss_mib.map(|mib| mib << 20),
            elapsed_s: 60.0,
            course: GrowthCourse::Level,
            rss_bytes_per_hour: 1,
            followed_share: 0.0,
            limit_bytes: None,
            seconds_to_limit: None,
            dirty_files_bytes: None,
            page_tables_bytes: None,
            hugetlb_bytes: None,
            open_files: None,
            counts: Vec::new(),
            open_memory: None,
            descendants: None,
            locked_files_bytes: None,
            has_steady_unbounded: false,
            process_limit: None,
            by,
        };
        let mut found = found(VerdictKind::OutsideHeap, &[]);
        let mut said = |growth| {
            found.growth = growth;
            next(&found, &server())
        };
        let end = "nothing to release; does it grow? lowtide inspect --watch 60s 7";
        assert_eq!(said(None), end);
        assert!(said(Some(growth([100, 101], vec![]))).starts_with("nothing to do"));
        let files = growth([100, 300], vec![part("file", 200)]);
        assert!(said(Some(files)).contains(" /proc/7/smaps_rollup"));
    }

    #[test]
    fn the_suggested_study_tries_settings_for_the_allocator_in_use() {
        let mut of_cpython = found(VerdictKind::Fragmentation, &[]);
        of_cpython.observation.ledger.add_walked(WalkedRuntime::CPython, State::Free, 900 << 20);
        assert_eq!(
            next(&of_cpython, &Service { listening: None, directory: None, ..server() }),
            "lowtide study -a glibc -t 'glibc/no-arenas: PYTHONMALLOC=malloc' -t 'mimalloc/no-arenas: \
             PYTHONMALLOC=malloc' -- ruby app.rb 'it'\\''s'"
        );
        let settings = vec!["GLIBC_TUNABLES".to_owned(), "PYTHONMALLOC".to_owned()];
        let with_settings = Service { settings, ..server() };
        let listening = next(&of_cpython, &with_settings);
        let names =
            "(it was started with GLIBC_TUNABLES, PYTHONMALLOC: put them before the command";
        assert!(!listening.contains("--env-from") && listening.contains(names), "{listening}");
        let job = next(&of_cpython, &Service { listening: None, ..with_settings });
        assert!(job.contains(" --env-from 7 -- ruby app.rb"), "{job}");
        let scattered = found(VerdictKind::Fragmentation, &[(RemedyKind::ArenaMax, None)]);
        let all = "-t glibc/arena_max=2 -t jemalloc/background_thread -p none,adaptive ";
        assert!(next(&scattered, &server()).contains(all), "{}", next(&scattered, &server()));
    }

    #[test]
    fn the_suggested_study_tries_the_setting_of_the_remedy_under_the_allocator_that_reads_it() {
        let said = |kind: RemedyKind, allocator: AllocatorKind, library: Option<&str>| {
            let setting = Some(("NAME", "VALUE"));
            let mut found = found(VerdictKind::Hoard, &[(kind, setting)]);
            let none = (Ledger::default(), HeapPrediction::default());
            let library = library.map(str::to_owned);
            found.observation.heaps = vec![WalkedHeap::new(allocator, library, &none.0, none.1)];
            next(&found, &server())
        };
        let purge = |allocator, library| said(RemedyKind::Purge, allocator, library);
        use AllocatorKind::{Gperftools, Jemalloc, Mimalloc};
        assert!(purge(Jemalloc, None).contains(" -t jemalloc/background_thread "));
        assert!(purge(Mimalloc, None).contains(" -t 'mimalloc/purge: NAME=VALUE' "));
        assert!(purge(Gperftools, None).contains(" -t 'tcmalloc/purge: NAME=VALUE' "));
        for allocator in [Jemalloc, Mimalloc] {
            let of_library = purge(allocator, Some("libarrow.so"));
            assert!(of_library.contains(" -t 'glibc/purge: NAME=VALUE' "), "{of_library}");
        }
        let caches = said(RemedyKind::ThreadCaches, Jemalloc, None);
        assert!(caches.contains(" -t 'jemalloc/no-caches: NAME=VALUE' "), "{caches}");
    }

    #[test]
    fn a_study_of_fragmentation_tries_what_returns_memory_and_a_load_only_of_its_protocol() {
        let mut found = found(VerdictKind::Fragmentation, &[]);
        let dns = Listening { address: "127.0.0.1".into(), port: 53 };
        let said = next(&found, &Service { listening: Some(dns), directory: None, ..server() });
        let study = "lowtide study -a glibc,jemalloc,mimalloc -t jemalloc/background_thread -p none,adaptive";
        assert!(said.starts_with(study), "{said}");
        assert!(said.contains("--load 'YOUR LOAD' -- ruby app.rb"), "{said}");
        assert!(said.contains("(YOUR LOAD: a client of its protocol)"), "{said}");
        assert!(!said.contains("http://"), "{said}");
        // A server whose protocol is known, at any port, also if it shows a title.
        for command in ["/usr/bin/redis-server", "redis-server 127.0.0.1:16379"] {
            found.observation.command = vec![command.to_owned()];
            assert!(next(&found, &server()).contains("--load 'YOUR LOAD'"), "{command}");
        }
    }

    #[test]
    fn a_level_runtime_with_advice_is_not_called_nothing_to_do() {
        let mut found = found(VerdictKind::Runtime, &[(RemedyKind::Runtime, None)]);
        found.growth = Some(Growth {
            rss_bytes: [1 << 30, 1 << 30],
            elapsed_s: 60.0,
            course: GrowthCourse::Level,
            rss_bytes_per_hour: 0,
            followed_share: 0.0,
            limit_bytes: None,
            seconds_to_limit: None,
            dirty_files_bytes: None,
            locked_files_bytes: None,
            has_steady_unbounded: false,
            process_limit: None,
            page_tables_bytes: None,
            hugetlb_bytes: None,
            open_files: None,
            counts: Vec::new(),
            open_memory: None,
            descendants: None,
            by: vec![],
        });
        assert!(next(&found, &server()).starts_with("the advice above"));
        found.remedies.clear();
        assert!(next(&found, &server()).starts_with("nothing to do"));
    }

    #[test]
    fn a_process_title_is_not_a_command() {
        let found = found(VerdictKind::Fragmentation, &[]);
        let next = next(&found, &Service::default());
        assert!(next.contains(" -- CMD\n      (CMD: the command that starts it)"), "{next}");
    }

    #[test]
    fn a_directory_that_cannot_be_printed_is_described() {
        let found = found(VerdictKind::Fragmentation, &[]);
        let service = Service { directory: Some("/srv/a\nb".into()), ..server() };
        let next = next(&found, &service);
        assert!(next.starts_with("cd DIR && lowtide study "), "{next}");
        assert!(next.ends_with("\n      (DIR: its working directory)"), "{next}");
    }

    #[test]
    fn settings_are_printed_as_deployment_configuration_if_they_are_the_remedy() {
        let remedies = [
            (RemedyKind::ArenaMax, Some(("MALLOC_ARENA_MAX", "2"))),
            (RemedyKind::TrimThreshold, Some(("MALLOC_TRIM_THRESHOLD_", "131072"))),
        ];
        let found_with = found(VerdictKind::Hoard, &remedies);
        let by = |starter| to_paste(&found_with, &Service { starter, ..server() });
        for (starter, line) in [
            (
                Starter::Unit("app.service".into()),
                "printf '[Service]\\nEnvironment=MALLOC_ARENA_MAX=2\\nEnvironment=MALLOC_TRIM_THRESHOLD_=131072\\n' \
                 > /etc/systemd/system/app.service.d/malloc.conf && systemctl daemon-reload",
            ),
            (Starter::Container, "ENV MALLOC_ARENA_MAX=2 MALLOC_TRIM_THRESHOLD_=131072 "),
            (
                Starter::Kubernetes,
                "env: [{name: MALLOC_ARENA_MAX, value: \"2\"}, {name: MALLOC_TRIM_THRESHOLD_, value: \"131072\"}]",
            ),
            (Starter::Unknown, "env MALLOC_ARENA_MAX=2 MALLOC_TRIM_THRESHOLD_=131072 CMD"),
        ] {
            assert!(by(starter).contains(line), "{line}");
        }
        assert_eq!(to_paste(&found(VerdictKind::Live, &remedies), &server()), "");
        let hostile = Service { starter: Starter::Unit("$(reboot).service".into()), ..server() };
        assert!(
            to_paste(&found(VerdictKind::Hoard, &remedies), &hostile)
                .contains("'/etc/systemd/system/$(reboot).service.d'")
        );
    }

    #[test]
    fn a_setting_that_gains_little_of_what_is_free_is_not_printed_to_paste() {
        let setting = (RemedyKind::Purge, Some(("MIMALLOC_PURGE_DELAY", "0")));
        let mut found = found(VerdictKind::Fragmentation, &[setting]);
        let rss = found.observation.ledger.total();
        found.observation.ledger.add(Owner::Fragmented, rss);
        let mut printed = |bytes| {
            found.remedies[0].predicted_bytes = Some(bytes);
            to_paste(&found, &server())
        };
        assert_eq!(printed(rss / 50), "");
        assert_eq!(printed(rss / 3), "", "more than twice as much is free");
        assert!(printed(rss).contains("MIMALLOC_PURGE_DELAY"));
    }

    #[test]
    fn a_program_of_musl_gets_no_study_of_libraries_for_glibc() {
        let mut found = found(VerdictKind::Fragmentation, &[]);
        for linkage in [Linkage::Static, Linkage::Dynamic] {
            let kind = AllocatorKind::Musl;
            found.observation.allocator =
                Some(Allocator { kind, version: None, linkage: Some(linkage) });
            assert!(next(&found, &server()).starts_with("nothing to run: no setting"));
            let release = Remedy::new(RemedyKind::Release, Some(1 << 30), String::new());
            found.remedies.push(release);
            let job = Service { listening: None, directory: None, ..server() };
            let said = next(&found, &job);
            assert!(said.starts_with("lowtide release "), "{said}");
            assert!(said.contains("\n      lowtide study -a own -p none,adaptive -- "), "{said}");
            found.remedies.clear();
        }
    }

    #[test]
    fn the_study_of_an_allocator_that_no_preload_replaces_tries_none() {
        let mut found = found(VerdictKind::Fragmentation, &[]);
        let allocator = |linkage| Allocator {
            kind: AllocatorKind::Jemalloc,
            version: None,
            linkage: Some(linkage),
        };
        found.observation.allocator = Some(allocator(Linkage::Static));
        let job = Service { listening: None, directory: None, ..server() };
        let said = next(&found, &job);
        assert!(said.starts_with("lowtide study -a own -p none,adaptive -- ruby"), "{said}");
        found.observation.allocator = Some(allocator(Linkage::Dynamic));
        assert!(next(&found, &job).contains("-a glibc,jemalloc,mimalloc"));
        // CPython contains a mimalloc.
        let heap = WalkedHeap::new(
            AllocatorKind::Mimalloc,
            Some("libpython3.13.so.1.0".to_owned()),
            &Ledger::default(),
            HeapPrediction::default(),
        );
        found.observation.heaps = vec![heap];
        assert!(next(&found, &job).contains("PYTHONMALLOC=pymalloc"));
    }
}
