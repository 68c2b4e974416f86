//! The one catalogue of what pages say, in each language.
//!
//! INVARIANT: a text that is missing in a language does not compile.

mod connect;
mod counts;
pub(crate) mod desk;
mod devices;
mod visits;

use connect::ConnectTexts;
use desk::DeskTexts;
use devices::DeviceTexts;
use visits::VisitTexts;
use vpnd_ipc::gateway::refusal::{Refusal, Refused};

/// The texts of a language.
pub(crate) struct Texts {
    /// Its tag (BCP 47).
    pub(crate) language: &'static str,
    pub(crate) skip: &'static str,
    pub(crate) log_in: &'static str,
    pub(crate) log_in_with: &'static str,
    pub(crate) or_password: &'static str,
    pub(crate) log_out: &'static str,
    pub(crate) logged_out: &'static str,
    /// Where there are providers.
    pub(crate) logged_out_here: &'static str,
    pub(crate) user: &'static str,
    pub(crate) password: &'static str,
    pub(crate) second_step: &'static str,
    pub(crate) code: &'static str,
    pub(crate) answer: &'static str,
    pub(crate) go_on: &'static str,
    pub(crate) approve: &'static str,
    pub(crate) goes_on: &'static str,
    pub(crate) waiting: &'static str,
    pub(crate) look_again: &'static str,
    pub(crate) start_again: &'static str,
    pub(crate) my_sessions: &'static str,
    pub(crate) logged_in_as: &'static str,
    pub(crate) no_sessions: &'static str,
    pub(crate) since: &'static str,
    pub(crate) from: &'static str,
    pub(crate) addresses: &'static str,
    pub(crate) not_known: &'static str,
    pub(crate) end_session: &'static str,
    pub(crate) session_ended: &'static str,
    pub(crate) my_account: &'static str,
    pub(crate) has_codes: &'static str,
    pub(crate) has_no_codes: &'static str,
    pub(crate) set_up_codes: &'static str,
    pub(crate) change_codes: &'static str,
    pub(crate) remove_codes: &'static str,
    pub(crate) remove_codes_text: &'static str,
    pub(crate) codes_removed: &'static str,
    pub(crate) change_password: &'static str,
    pub(crate) password_rule: &'static str,
    pub(crate) present_password: &'static str,
    pub(crate) new_password: &'static str,
    pub(crate) password_again: &'static str,
    pub(crate) passwords_differ: &'static str,
    pub(crate) password_unusable: &'static str,
    pub(crate) password_wrong: &'static str,
    pub(crate) password_changed: &'static str,
    pub(crate) second_factor: &'static str,
    pub(crate) scan: &'static str,
    pub(crate) qr_code: &'static str,
    pub(crate) by_hand: &'static str,
    pub(crate) code_of_app: &'static str,
    pub(crate) set_up: &'static str,
    pub(crate) code_wrong: &'static str,
    pub(crate) codes_changed: &'static str,
    pub(crate) invitation: &'static str,
    pub(crate) invitation_text: &'static str,
    pub(crate) invitation_app_text: &'static str,
    pub(crate) invitation_rule: &'static str,
    pub(crate) invitation_go: &'static str,
    pub(crate) invitation_done: &'static str,
    pub(crate) invitation_done_text: &'static str,
    pub(crate) invitation_over: &'static str,
    pub(crate) invitation_over_text: &'static str,
    pub(crate) log_in_again: &'static str,
    pub(crate) log_in_again_text: &'static str,
    pub(crate) back: &'static str,
    pub(crate) not_found: &'static str,
    pub(crate) not_found_text: &'static str,
    pub(crate) failed: &'static str,
    pub(crate) failed_text: &'static str,
    pub(crate) old_form: &'static str,
    pub(crate) old_form_text: &'static str,
    pub(crate) too_many_logins: &'static str,
    pub(crate) connect: ConnectTexts,
    pub(crate) devices: DeviceTexts,
    pub(crate) desk: DeskTexts,
    pub(crate) visits: VisitTexts,
    /// This many seconds ago.
    pub(crate) ago: fn(u64) -> String,
    /// This number of seconds ago, of a moment.
    pub(crate) earlier: fn(u64) -> String,
    /// The visit ends in so many seconds.
    pub(crate) until: fn(u64) -> String,
    refusal: fn(Refusal) -> &'static str,
    /// A refusal, with this many seconds to wait.
    wait: fn(u64) -> String,
}

impl Texts {
    /// Why a login was refused.
    pub(crate) fn refused(&self, refused: Refused) -> String {
        match (refused.refusal, refused.retry_after_s) {
            (Refusal::Throttled, Some(wait_s)) => (self.wait)(wait_s),
            (refusal, _) => (self.refusal)(refusal).to_owned(),
        }
    }
}

const ALL: [&Texts; 2] = [&ENGLISH, &GERMAN];

/// The language that a browser prefers (RFC 9110 section 12.5.4); English if it names none of ours.
pub(crate) fn preferred(accepted: &str) -> &'static Texts {
    let mut best = (0.0, &ENGLISH);
    for range in accepted.split(',').take(32) {
        let (tag, weight) = range.split_once(';').unwrap_or((range, "q=1"));
        let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
        let primary = tag.trim().split('-').next().unwrap_or_default();
        let known = ALL.iter().find(|texts| texts.language.eq_ignore_ascii_case(primary));
        if let (Some(texts), Some(weight)) = (known, weight)
            && weight > best.0
        {
            best = (weight, texts);
        }
    }
    best.1
}

/// A time as its largest unit: minutes, hours or days.
fn unit(seconds: u64) -> (u64, usize) {
    match seconds {
        0..3_600 => (seconds / 60, 0),
        3_600..86_400 => (seconds / 3_600, 1),
        _ => (seconds / 86_400, 2),
    }
}

fn english_ago(seconds: u64) -> String {
    match unit(seconds) {
        (0, 0) => "just now".to_owned(),
        (1, unit) => format!("1 {} ago", ["minute", "hour", "day"][unit]),
        (count, unit) => format!("{count} {} ago", ["minutes", "hours", "days"][unit]),
    }
}

fn german_earlier(seconds: u64) -> String {
    match unit(seconds) {
        (0, 0) => "gerade eben".to_owned(),
        (1, unit) => format!("vor {}", ["1 Minute", "1 Stunde", "1 Tag"][unit]),
        (count, unit) => format!("vor {count} {}", ["Minuten", "Stunden", "Tagen"][unit]),
    }
}

fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

pub(crate) static ENGLISH: Texts = Texts {
    language: "en",
    skip: "Skip to the content",
    log_in: "Log in",
    log_in_with: "Log in with",
    or_password: "Or with a user name and a password:",
    log_out: "Log out",
    logged_out: "You are logged out.",
    logged_out_here: "You are logged out here. If you logged in by a button below, its page may still know you: on a shared computer, log out there, too, or close the browser.",
    user: "User name",
    password: "Password",
    second_step: "One more step",
    code: "Type the current code from your authenticator app.",
    answer: "Answer",
    go_on: "Continue",
    approve: "Approve the login on your phone or other device.",
    goes_on: "This page continues by itself where scripts are allowed.",
    waiting: "Waiting for your approval",
    look_again: "I have approved it",
    start_again: "Start again",
    my_sessions: "My sessions",
    logged_in_as: "You are logged in as",
    no_sessions: "None of your devices is connected to the VPN now.",
    since: "Connected",
    from: "From",
    addresses: "VPN address",
    not_known: "not known",
    end_session: "End session",
    session_ended: "The session is ended. The device notices after about a second.",
    my_account: "My account",
    has_codes: "Your logins ask for a code of your authenticator app.",
    has_no_codes: "Your logins ask for no code. With an authenticator app, a stolen password is not enough.",
    set_up_codes: "Set up an authenticator app",
    change_codes: "Change the authenticator app",
    remove_codes: "Log in without an app",
    remove_codes_text: "Your logins ask for no code any longer. Whoever has your password can log in as you.",
    codes_removed: "Your next login asks for no code.",
    change_password: "Change password",
    password_rule: "At least 8 characters. Your devices are disconnected and need the new password.",
    present_password: "Current password",
    new_password: "New password",
    password_again: "New password again",
    passwords_differ: "The new passwords differ.",
    password_unusable: "Choose another new password: at least 8 characters, and none that many people have or that your name or this service suggests. Four random words make a good one.",
    password_wrong: "The current password is wrong.",
    password_changed: "Your password is changed. Your devices need the new one.",
    second_factor: "Authenticator app",
    scan: "Scan this with your authenticator app. Then type the code that it shows.",
    qr_code: "QR code for the app",
    by_hand: "Or type this into the app:",
    code_of_app: "Code",
    set_up: "Use this app",
    code_wrong: "The code is wrong. Codes change every 30 seconds; is the clock of your device right?",
    codes_changed: "Your next login asks for a code of this app.",
    invitation: "Welcome",
    invitation_text: "Choose a password, and set up an authenticator app. Your user name is",
    invitation_app_text: "Set up an authenticator app. Your user name is",
    invitation_rule: "At least 8 characters.",
    invitation_go: "Set up my account",
    invitation_done: "Your account is set up",
    invitation_done_text: "Log in with your password and a new code of the app.",
    invitation_over: "This link is used or too old",
    invitation_over_text: "Ask for another one where you got it.",
    log_in_again: "Please log in again",
    log_in_again_text: "Passwords, apps and other browsers can be changed within ten minutes of a login. Log in again.",
    back: "Back",
    not_found: "There is nothing here",
    not_found_text: "The address is wrong, or what was here is gone.",
    failed: "This does not work at the moment",
    failed_text: "The gateway gave no answer. Your VPN sessions go on. Try again in a moment.",
    old_form: "This page was too old",
    old_form_text: "Nothing was changed. Start again, and do not use the browser's back button.",
    too_many_logins: "Too many logins are under way. Try again in a few seconds.",
    connect: connect::ENGLISH,
    devices: devices::ENGLISH,
    desk: desk::ENGLISH,
    visits: visits::ENGLISH,
    ago: english_ago,
    earlier: english_ago,
    until: |seconds| {
        format!(
            "This page logs you out after 30 minutes without use, and in {} at the latest.",
            count(seconds.div_ceil(3_600), "hour", "hours")
        )
    },
    refusal: |refusal| match refusal {
        Refusal::Credentials => "The user name, the password or the code is wrong.",
        Refusal::Throttled => "Too many attempts. Wait a moment.",
        Refusal::Busy | Refusal::WaitingFull | Refusal::Draining | Refusal::TooMany => {
            "The login took too long, or the gateway is busy. Try again."
        }
        Refusal::SourceUnavailable => {
            "The directory with your account can't be reached. Try again in a minute."
        }
        Refusal::StoreUnavailable => "The gateway's user database can't be reached. Try again in a minute.",
        Refusal::NotApproved => "The login was not approved in time.",
        Refusal::NotConfirmed | Refusal::GrantVoid => {
            "Your identity provider has not confirmed the login. Try again."
        }
        Refusal::NeedsBrowser | Refusal::StartInBrowser | Refusal::NoPages => {
            "Accounts of this kind log in with the button of their identity provider."
        }
        Refusal::TooManyGroups => "Your account is in more groups than the VPN takes. Tell the help desk.",
        Refusal::Disabled => "Your account is disabled here. Ask the help desk.",
        Refusal::Expired => "Your account has expired. Ask the help desk to extend it.",
        Refusal::NoProfile => "Your account has no access to the VPN. Ask the help desk.",
        Refusal::NeedsCode | Refusal::NeedsApproval | Refusal::NeedsFactor => {
            "Your account needs a second factor for this, and has none yet. Ask the help desk."
        }
        Refusal::OldLogin => "Your login is too old for this access. Log in again.",
        Refusal::Certificate | Refusal::NeedsCertificate => {
            "Your account needs a certificate, which this page can't ask for. Use the VPN client."
        }
        Refusal::LacksChallenges
        | Refusal::NoAddress
        | Refusal::Internal
        | Refusal::Pending
        | Refusal::DeviceRefused => "The gateway could not let you in. Try again.",
    },
    wait: |seconds| format!("Too many attempts. Wait {}.", count(seconds, "second", "seconds")),
};

pub(crate) static GERMAN: Texts = Texts {
    language: "de",
    skip: "Zum Inhalt",
    log_in: "Anmelden",
    log_in_with: "Anmelden mit",
    or_password: "Oder mit Benutzername und Passwort:",
    log_out: "Abmelden",
    logged_out: "Sie sind abgemeldet.",
    logged_out_here: "Sie sind hier abgemeldet. Haben Sie sich über einen der Knöpfe unten angemeldet, kennt Sie dessen Seite vielleicht noch: Melden Sie sich an einem geteilten Rechner auch dort ab, oder schließen Sie den Browser.",
    user: "Benutzername",
    password: "Passwort",
    second_step: "Noch ein Schritt",
    code: "Geben Sie den aktuellen Code aus Ihrer Authenticator-App ein.",
    answer: "Antwort",
    go_on: "Weiter",
    approve: "Bestätigen Sie die Anmeldung auf Ihrem Telefon oder einem anderen Gerät.",
    goes_on: "Diese Seite geht von selbst weiter, wo Skripte erlaubt sind.",
    waiting: "Ihre Bestätigung fehlt noch",
    look_again: "Ich habe bestätigt",
    start_again: "Von vorn beginnen",
    my_sessions: "Meine Sitzungen",
    logged_in_as: "Sie sind angemeldet als",
    no_sessions: "Zurzeit ist keines Ihrer Geräte mit dem VPN verbunden.",
    since: "Verbunden",
    from: "Von",
    addresses: "VPN-Adresse",
    not_known: "nicht bekannt",
    end_session: "Sitzung beenden",
    session_ended: "Die Sitzung ist beendet. Das Gerät bemerkt es nach etwa einer Sekunde.",
    my_account: "Mein Konto",
    has_codes: "Bei der Anmeldung wird ein Code Ihrer Authenticator-App verlangt.",
    has_no_codes: "Bei der Anmeldung wird kein Code verlangt. Mit einer Authenticator-App kommt niemand allein mit Ihrem Passwort hinein.",
    set_up_codes: "Authenticator-App einrichten",
    change_codes: "Authenticator-App ändern",
    remove_codes: "Ohne App anmelden",
    remove_codes_text: "Bei der Anmeldung wird dann kein Code mehr verlangt. Wer Ihr Passwort hat, kann sich als Sie anmelden.",
    codes_removed: "Bei der nächsten Anmeldung wird kein Code verlangt.",
    change_password: "Passwort ändern",
    password_rule: "Mindestens 8 Zeichen. Ihre Geräte werden getrennt und brauchen das neue Passwort.",
    present_password: "Bisheriges Passwort",
    new_password: "Neues Passwort",
    password_again: "Neues Passwort noch einmal",
    passwords_differ: "Die neuen Passwörter sind verschieden.",
    password_unusable: "Wählen Sie ein anderes neues Passwort: mindestens 8 Zeichen und keines, das viele Leute haben oder das Ihr Name oder dieser Dienst nahelegt. Gut sind vier zufällige Wörter.",
    password_wrong: "Das bisherige Passwort ist falsch.",
    password_changed: "Ihr Passwort ist geändert. Ihre Geräte brauchen das neue.",
    second_factor: "Authenticator-App",
    scan: "Scannen Sie dies mit Ihrer Authenticator-App. Geben Sie dann den Code ein, den sie zeigt.",
    qr_code: "QR-Code für die App",
    by_hand: "Oder geben Sie dies in die App ein:",
    code_of_app: "Code",
    set_up: "Diese App verwenden",
    code_wrong: "Der Code ist falsch. Codes wechseln alle 30 Sekunden; stimmt die Uhr Ihres Geräts?",
    codes_changed: "Bei der nächsten Anmeldung wird ein Code dieser App verlangt.",
    invitation: "Willkommen",
    invitation_text: "Wählen Sie ein Passwort, und richten Sie eine Authenticator-App ein. Ihr Benutzername ist",
    invitation_app_text: "Richten Sie eine Authenticator-App ein. Ihr Benutzername ist",
    invitation_rule: "Mindestens 8 Zeichen.",
    invitation_go: "Konto einrichten",
    invitation_done: "Ihr Konto ist eingerichtet",
    invitation_done_text: "Melden Sie sich mit Ihrem Passwort und einem neuen Code der App an.",
    invitation_over: "Dieser Link ist verbraucht oder zu alt",
    invitation_over_text: "Bitten Sie dort um einen neuen, wo Sie ihn bekommen haben.",
    log_in_again: "Bitte melden Sie sich neu an",
    log_in_again_text: "Passwörter, Apps und andere Browser lassen sich in den ersten zehn Minuten nach einer Anmeldung ändern. Melden Sie sich neu an.",
    back: "Zurück",
    not_found: "Hier ist nichts",
    not_found_text: "Die Adresse ist falsch, oder was hier war, ist nicht mehr da.",
    failed: "Das geht gerade nicht",
    failed_text: "Das Gateway hat nicht geantwortet. Ihre VPN-Sitzungen laufen weiter. Versuchen Sie es gleich noch einmal.",
    old_form: "Diese Seite war zu alt",
    old_form_text: "Es wurde nichts geändert. Beginnen Sie von vorn und ohne die Zurück-Taste des Browsers.",
    connect: connect::GERMAN,
    devices: devices::GERMAN,
    desk: desk::GERMAN,
    visits: visits::GERMAN,
    too_many_logins: "Zu viele Anmeldungen laufen gerade. Versuchen Sie es in ein paar Sekunden noch einmal.",
    earlier: german_earlier,
    ago: |seconds| match unit(seconds) {
        (0, 0) => "gerade eben".to_owned(),
        (1, unit) => format!("seit {}", ["1 Minute", "1 Stunde", "1 Tag"][unit]),
        (count, unit) => format!("seit {count} {}", ["Minuten", "Stunden", "Tagen"][unit]),
    },
    until: |seconds| {
        format!(
            "Diese Seite meldet Sie nach 30 Minuten ohne Nutzung ab, spätestens in {}.",
            count(seconds.div_ceil(3_600), "Stunde", "Stunden")
        )
    },
    refusal: |refusal| match refusal {
        Refusal::Credentials => "Benutzername, Passwort oder Code ist falsch.",
        Refusal::Throttled => "Zu viele Versuche. Warten Sie einen Moment.",
        Refusal::Busy | Refusal::WaitingFull | Refusal::Draining | Refusal::TooMany => {
            "Die Anmeldung hat zu lange gedauert, oder das Gateway ist ausgelastet. Versuchen Sie es noch einmal."
        }
        Refusal::SourceUnavailable => {
            "Das Verzeichnis mit Ihrem Konto ist nicht erreichbar. Versuchen Sie es in einer Minute noch einmal."
        }
        Refusal::StoreUnavailable => {
            "Die Benutzerdatenbank des Gateways ist nicht erreichbar. Versuchen Sie es in einer Minute noch einmal."
        }
        Refusal::NotApproved => "Die Anmeldung wurde nicht rechtzeitig bestätigt.",
        Refusal::NotConfirmed | Refusal::GrantVoid => {
            "Ihr Identitätsanbieter hat die Anmeldung nicht bestätigt. Versuchen Sie es noch einmal."
        }
        Refusal::NeedsBrowser | Refusal::StartInBrowser | Refusal::NoPages => {
            "Konten dieser Art melden sich mit der Schaltfläche ihres Identitätsanbieters an."
        }
        Refusal::TooManyGroups => {
            "Ihr Konto ist in mehr Gruppen, als das VPN nimmt. Sagen Sie es dem Helpdesk."
        }
        Refusal::Disabled => "Ihr Konto ist hier gesperrt. Fragen Sie den Helpdesk.",
        Refusal::Expired => "Ihr Konto ist abgelaufen. Bitten Sie den Helpdesk, es zu verlängern.",
        Refusal::NoProfile => "Ihr Konto hat keinen Zugang zum VPN. Fragen Sie den Helpdesk.",
        Refusal::NeedsCode | Refusal::NeedsApproval | Refusal::NeedsFactor => {
            "Ihr Konto braucht dafür einen zweiten Faktor und hat noch keinen. Fragen Sie den Helpdesk."
        }
        Refusal::OldLogin => {
            "Ihre Anmeldung liegt für diesen Zugang zu lange zurück. Melden Sie sich neu an."
        }
        Refusal::Certificate | Refusal::NeedsCertificate => {
            "Ihr Konto braucht ein Zertifikat, nach dem diese Seite nicht fragen kann. Verwenden Sie den VPN-Client."
        }
        Refusal::LacksChallenges
        | Refusal::NoAddress
        | Refusal::Internal
        | Refusal::Pending
        | Refusal::DeviceRefused => "Das Gateway konnte Sie nicht anmelden. Versuchen Sie es noch einmal.",
    },
    wait: |seconds| format!("Zu viele Versuche. Warten Sie {}.", count(seconds, "Sekunde", "Sekunden")),
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_best_language_is_taken_that_there_is() {
        for (accepted, language) in [
            ("", "en"),
            ("de", "de"),
            ("de-DE,de;q=0.9,en;q=0.8", "de"),
            ("en-US,en;q=0.9,de;q=0.8", "en"),
            ("fr,de;q=0.3,en;q=0.1", "de"),
            ("de;q=0,en;q=0.5", "en"),
            ("de;q=nan,;;,=", "en"),
            ("*", "en"),
        ] {
            assert_eq!(preferred(accepted).language, language, "{accepted:?}");
        }
    }

    #[test]
    fn times_are_in_words() {
        assert_eq!((ENGLISH.ago)(59), "just now");
        assert_eq!((ENGLISH.ago)(60), "1 minute ago");
        assert_eq!((ENGLISH.ago)(2 * 3_600), "2 hours ago");
        assert_eq!((GERMAN.ago)(3 * 86_400), "seit 3 Tagen");
        assert_eq!((GERMAN.earlier)(3 * 86_400), "vor 3 Tagen");
        assert_eq!((ENGLISH.devices.left)(Some(30)), "Allowed for 1 minute more");
        assert_eq!((GERMAN.devices.left)(Some(61)), "Noch 2 Minuten zugelassen");
        assert_eq!((GERMAN.desk.good_for)(1), "noch 1 Tag gültig");
        assert_eq!((GERMAN.desk.runs)("0.1", 7_300), "Version 0.1, gestartet vor 2 Stunden");
        assert!((ENGLISH.until)(3_600).contains(" in 1 hour at"));
        assert!((GERMAN.until)(9).ends_with(" 1 Stunde."));
        assert!((ENGLISH.wait)(1).ends_with(" 1 second.") && (ENGLISH.wait)(2).ends_with(" 2 seconds."));
    }

    #[test]
    fn languages_differ_in_what_they_say_of_a_refusal() {
        for refusal in Refusal::ALL {
            let texts: BTreeSet<String> = ALL.iter().map(|texts| texts.refused((*refusal).into())).collect();
            assert_eq!(texts.len(), ALL.len(), "{refusal:?}");
        }
    }
}
