//! The file that an administrator hands out, as `wg-quick` takes it.

use std::process::Command;

use super::*;

#[test]
fn wg_quick_accepts_the_file_unchanged() {
    let Some(program) = program("wireguard-go") else { return };
    let tools = ["/usr/bin/wg", "/usr/bin/wg-quick"].iter().all(|tool| Path::new(tool).exists());
    assert!(tools || std::env::var_os("CI").is_none(), "wireguard-tools are missing: ./x setup");
    if !tools {
        eprintln!("SKIPPED: wg-quick needs wireguard-tools: ./x setup");
        return;
    }
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, _) = gateway_for_phone(&lab);
    let place = &lab.clients[0];
    process::share_run(&lab, place, Path::new("/"));
    std::fs::create_dir_all(process::run_of(&lab, place).join("wireguard")).unwrap();
    let file = lab.path("wg0.conf");
    let text = device_file(&gateway, "ann", "laptop");
    assert!(text.contains("[Interface]") && text.contains("[Peer]"));
    crate::gateway::write_secret(&file, &text);
    let quick = |verb: &str| -> Command {
        let mut command = process::command(&lab, place, "/usr/bin/wg-quick");
        command.arg(verb).arg(&file).env("WG_QUICK_USERSPACE_IMPLEMENTATION", &program);
        command
    };
    let stripped = process::text(&must(process::run(quick("strip"))));
    assert!(stripped.contains("PrivateKey") && !stripped.contains("Address"), "{stripped}");
    must(process::run(quick("up")));
    ping_until(place, CAMPUS_V4.into(), PATIENCE);
    ping_until(place, CAMPUS_V6.into(), PATIENCE);
    assert_eq!(sessions_of(&gateway, "wireguard").len(), 1);
    must(process::run(quick("down")));
    assert!(!ping(place, CAMPUS_V4.into(), 56, SECOND));
}
