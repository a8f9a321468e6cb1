/* A library to preload on an Intel: the process sees the CPUID of another processor.

   CPUID holds what differs, as `LEAF.SUBLEAF=EAX,EBX,ECX,EDX` in hexadecimal, joined by spaces. A
   register is a number, `&` and a mask of what is kept, or `-` for what it is here. A leaf that is
   given without its subleaf 0 keeps the real ones.

   The kernel lets a process have its CPUID instructions fault (arch_prctl); each is answered from
   a table that was filled before. Build: cc -shared -fPIC -o other_processor.so other_processor.c */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <cpuid.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { LEAVES = 0x30, SUBLEAVES = 8, RANGES = 2 };
static const unsigned FIRST[RANGES] = {0, 0x80000000u};
static unsigned answers[RANGES][LEAVES][SUBLEAVES][4];

static unsigned *answer(unsigned leaf, unsigned subleaf) {
  unsigned range = leaf >> 31, row = leaf - FIRST[range];
  static unsigned zeros[4];
  return row < LEAVES ? answers[range][row][subleaf % SUBLEAVES] : zeros;
}

static void on_fault(int number, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const unsigned char *code = (const unsigned char *)registers[REG_RIP];
  if (info->si_code != SI_KERNEL || code[0] != 0x0f || code[1] != 0xa2) {
    signal(number, SIG_DFL); /* A fault of the program: it comes again, and ends it. */
    return;
  }
  const unsigned *found = answer(registers[REG_RAX], registers[REG_RCX]);
  registers[REG_RAX] = found[0], registers[REG_RBX] = found[1];
  registers[REG_RCX] = found[2], registers[REG_RDX] = found[3];
  registers[REG_RIP] += 2;
}

static void replace(char *entry) {
  unsigned leaf, subleaf;
  char words[4][16];
  if (sscanf(entry, "%x.%x=%15[^,],%15[^,],%15[^,],%15s", &leaf, &subleaf, words[0], words[1],
             words[2], words[3]) != 6) {
    fprintf(stderr, "other_processor: cannot read %s\n", entry);
    _exit(2);
  }
  for (int i = 0; i < 4; i++) {
    if (words[i][0] == '&')
      answer(leaf, subleaf)[i] &= strtoul(words[i] + 1, NULL, 16);
    else if (words[i][0] != '-')
      answer(leaf, subleaf)[i] = strtoul(words[i], NULL, 16);
  }
}

__attribute__((constructor)) static void begin(void) {
  for (int range = 0; range < RANGES; range++)
    for (unsigned row = 0; row < LEAVES; row++)
      for (unsigned subleaf = 0; subleaf < SUBLEAVES; subleaf++) {
        unsigned *to = answers[range][row][subleaf];
        __cpuid_count(FIRST[range] + row, subleaf, to[0], to[1], to[2], to[3]);
      }
  char *given = strdup(getenv("CPUID") ? getenv("CPUID") : "");
  for (char *entry = strtok(given, " "); entry; entry = strtok(NULL, " ")) replace(entry);
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGSEGV, &action, NULL);
  if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0) != 0) {
    perror("other_processor: arch_prctl");
    _exit(3);
  }
}
