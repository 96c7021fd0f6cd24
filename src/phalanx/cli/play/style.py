"""The look of the game: where its parts stand, and their colours, in Textual's CSS.

Cells have the colours of `phalanx.arc.render.palette`.
"""

# Behind black cells the screen is lighter than Textual's own, so that grids show where they end.
CSS = """
Screen { background: #262b35; }
#title { dock: top; height: 1; padding: 0 1; background: $panel; text-overflow: ellipsis; }
#main { height: 1fr; }
#demonstrations { width: 1fr; scrollbar-size-vertical: 1; }
PairView { width: 100%; height: auto; align-horizontal: center; border: round #4a5262;
           border-title-color: $text-muted; border-subtitle-color: $text-muted; }
.arrow { width: 3; height: 100%; content-align: center middle; color: $text-muted; }
#work { width: 1fr; }
#input-frame { height: auto; border: round #4a5262; border-title-color: $text-muted;
               align-horizontal: center; scrollbar-size: 1 1; }
#board-frame { height: 1fr; border: round $accent; border-title-color: $accent;
               border-subtitle-color: $text-muted; align: center middle; scrollbar-size: 1 1; }
#panel { width: 29; height: 100%; border: round #4a5262; border-title-color: $text-muted;
         scrollbar-size-vertical: 1; padding: 0; background: #262b35; }
Screen.-narrow #panel { display: none; }
#message { height: 1; padding: 0 1; text-overflow: ellipsis; }
#message.solved { background: #12805c; color: #ffffff; text-style: bold; }
#message.failed { background: #b42318; color: #ffffff; text-style: bold; }
#choice { height: 1; padding: 0 1; }
#tool { width: 1fr; padding-left: 2; text-overflow: ellipsis; }
ModalScreen { align: center middle; }
.dialog { width: 100; max-width: 95%; height: auto; max-height: 90%; border: round $accent; padding: 0 1;
          background: $surface; }
.dialog OptionList { height: auto; max-height: 100%; border: none; background: $surface; }
.question { width: 62; padding: 1 2; }
.question Horizontal { height: auto; margin-top: 1; }
.question Button { margin-right: 2; }
"""
