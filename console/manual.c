#include "console/manual.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/buf.h"
#include "protocol/base/child.h"
#include "protocol/base/file.h"
#include "protocol/wire/message.h"

#define ANSWER_MAX ((size_t)1 << 20)

/* What `rollcall NAME HELP` prints; *status is its exit status. */
static bool help_ask(const char *name, const char *help, struct buf *out, int *status, struct error *err)
{
    int fd[2];
    pid_t pid;
    char chunk[4096];
    ssize_t n = 0;
    char *argv[] = { "rollcall", (char *)name, (char *)help, NULL };
    posix_spawn_file_actions_t actions;
    buf_clear(out);
    if (pipe(fd) != 0)
        return error_errno(err, "cannot make a pipe");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, fd[0]);
    posix_spawn_file_actions_addclose(&actions, fd[1]);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int rc = child_spawn(&pid, "/proc/self/exe", &actions, 0, argv, NULL);
    posix_spawn_file_actions_destroy(&actions);
    close(fd[1]);
    while (rc == 0 && out->len < ANSWER_MAX && (n = read(fd[0], chunk, sizeof chunk)) > 0)
        buf_add(out, chunk, (size_t)n);
    close(fd[0]);    // a child that still writes ends by SIGPIPE
    if (rc != 0)
        return error_set(err, ERR_IO, "cannot run 'rollcall %s %s': %s", name, help, strerror(rc));
    if (waitpid(pid, status, 0) != pid)
        return error_errno(err, "cannot wait for a child");
    return true;
}

static bool put(const char *dir, const char *folder, const char *name, const struct buf *text, struct error *err)
{
    char path[4096], at[4096];
    return (path_join(at, sizeof at, dir, folder) && path_join(path, sizeof path, at, name))
               ? dir_make(at, 0755, err) && file_write(path, buf_text(text), text->len, err)
               : error_set(err, ERR_USAGE, "the path '%.400s' is too long", dir);
}

static bool page_write(const struct subcommand *s, const char *dir, struct error *err)
{
    struct buf page = BUF_INIT;
    char file[72];
    int status = 0;
    snprintf(file, sizeof file, "rollcall-%s.1", s->name);
    bool ok = help_ask(s->name, "--help=man", &page, &status, err)
              && (status == 0 || error_set(err, ERR_INTERNAL, "'rollcall %s' has no --help=man", s->name));
    buf_str(&page, ".SH SEE ALSO\n.BR rollcall (1)\n");
    ok = ok && put(dir, "man1", file, &page, err);
    buf_release(&page);
    return ok;
}

static bool overview_write(const struct subcommand *const *list, int n, const char *dir, struct error *err)
{
    struct buf page = BUF_INIT;
    buf_str(&page, ".TH \"rollcall\" 1\n.SH NAME\nrollcall \\- train language models by reinforcement learning, steered from a terminal\n"
                   ".SH SYNOPSIS\n.B rollcall\nCOMMAND [options]\n.SH COMMANDS\n");
    for (int i = 0; i < n; i++)
        if (list[i]->help)
            buf_fmt(&page, ".TP\n.BR rollcall\\-%s (1)\n%s\n", list[i]->name, list[i]->help);
    buf_str(&page,
            ".SH EXIT STATUS\n0: done; for a run: finished. 1: failed. 2: wrong usage. 3: a run was stopped by an operator or a signal.\n");
    bool ok = put(dir, "man1", "rollcall.1", &page, err);
    buf_release(&page);
    return ok;
}

/* The parts of the completion scripts, one per shell, as they grow. */
struct scripts {
    struct buf bash, zsh, fish;
};

/* A text for single quotes in any shell, without characters that would end them or that zsh's _arguments interprets. */
static void quoted(struct buf *out, const char *text)
{
    for (; *text; text++)
        if (*text == '\'')
            buf_str(out, "\xE2\x80\x99");
        else if (*text == '[' || *text == ']' || *text == ':' || *text == '\\')
            buf_char(out, *text == '[' ? '(' : *text == ']' ? ')' : *text == ':' ? ',' : '/');
        else
            buf_char(out, *text);
}

/* One option of `--help=words`. */
static void option_add(struct scripts *s, const char *command, char *line)
{
    char *field[4], *at = line;
    for (int i = 0; i < 4; i++) {
        field[i] = strsep(&at, "\t");
        if (!field[i])
            return;
    }
    bool flag = strcmp(field[2], "flag") == 0;
    buf_fmt(&s->bash, " --%s", field[0]);
    buf_fmt(&s->zsh, " \\\n      '--%s[", field[0]);
    quoted(&s->zsh, field[3]);
    buf_fmt(&s->zsh, "]%s'", flag ? "" : ":value:_files");
    buf_fmt(&s->fish, "complete -c rollcall -n '__fish_seen_subcommand_from %s' -l %s%s -d '", command, field[0], flag ? "" : " -r");
    quoted(&s->fish, field[3]);
    buf_str(&s->fish, "'\n");
}

static bool command_add(struct scripts *s, const struct subcommand *c, struct error *err)
{
    struct buf words = BUF_INIT;
    int status = 0;
    if (!help_ask(c->name, "--help=words", &words, &status, err)) {
        buf_release(&words);
        return false;
    }
    buf_fmt(&s->bash, "    %s) words=\"", c->name);
    buf_fmt(&s->zsh, "    %s)\n      _arguments", c->name);
    buf_fmt(&s->fish, "complete -c rollcall -n __fish_use_subcommand -a %s -d '", c->name);
    quoted(&s->fish, c->help);
    buf_str(&s->fish, "'\n");
    char *at = status == 0 && words.len ? words.data : NULL, *line;
    while ((line = strsep(&at, "\n")) != NULL)
        option_add(s, c->name, line);
    for (int i = 0; strcmp(c->name, "ctl") == 0 && i < n_command_specs; i++)
        buf_fmt(&s->bash, " %s", command_specs[i].name);
    buf_str(&s->bash, " --help\" ;;\n");
    buf_str(&s->zsh, " \\\n      '--help[print this]' '*:file:_files' ;;\n");
    buf_release(&words);
    return true;
}

static bool completions_write(const struct subcommand *const *list, int n, const char *dir, struct error *err)
{
    struct scripts s = { BUF_INIT, BUF_INIT, BUF_INIT };
    bool ok = true;
    buf_str(&s.bash, "# completion of rollcall's commands and options for bash\n_rollcall()\n{\n  local words='' "
                     "word=\"${COMP_WORDS[COMP_CWORD]}\"\n  case \"${COMP_WORDS[1]}\" in\n");
    buf_str(&s.zsh, "#compdef rollcall\n_rollcall()\n{\n  local -a commands=(\n");
    for (int i = 0; i < n; i++)
        if (list[i]->help) {
            buf_fmt(&s.zsh, "    '%s:", list[i]->name);
            quoted(&s.zsh, list[i]->help);
            buf_str(&s.zsh, "'\n");
        }
    buf_str(&s.zsh, "  )\n  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n  local command=$words[2]\n"
                    "  shift words\n  (( CURRENT-- ))\n  case $command in\n");
    buf_str(&s.fish, "# completion of rollcall's commands and options for fish\n");
    for (int i = 0; ok && i < n; i++)
        ok = !list[i]->help || command_add(&s, list[i], err);
    buf_str(&s.bash, "  esac\n  if [ \"$COMP_CWORD\" = 1 ]; then\n    words=\"");
    for (int i = 0; i < n; i++)
        if (list[i]->help)
            buf_fmt(&s.bash, "%s%s", i ? " " : "", list[i]->name);
    buf_str(&s.bash,
            "\"\n  fi\n  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
            "  [ \"${word:0:1}\" = - ] || [ \"$COMP_CWORD\" = 1 ] || mapfile -t -O \"${#COMPREPLY[@]}\" COMPREPLY < <(compgen -f -- "
            "\"$word\")\n}\ncomplete -o filenames -F _rollcall rollcall\n");
    buf_str(&s.zsh, "  esac\n}\n_rollcall \"$@\"\n");
    ok = ok && put(dir, "completions", "rollcall.bash", &s.bash, err) && put(dir, "completions", "_rollcall", &s.zsh, err)
         && put(dir, "completions", "rollcall.fish", &s.fish, err);
    buf_release(&s.bash);
    buf_release(&s.zsh);
    buf_release(&s.fish);
    return ok;
}

bool manual_write(const struct subcommand *const *list, int n, const char *dir, struct error *err)
{
    if (!dir_make(dir, 0755, err) || !overview_write(list, n, dir, err))
        return false;
    for (int i = 0; i < n; i++)
        if (list[i]->help && !page_write(list[i], dir, err))
            return false;
    return completions_write(list, n, dir, err);
}
